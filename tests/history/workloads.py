"""List-append and bank through real clients while the broker is killed, recorded for the checker.

    python -m tests.history.workloads --workload bank --seconds 300

Outcomes are three: ok, fail (it definitely did not happen) and info (unknown). Only what ends before
anybody has asked for the commit can fail; a commit without an answer, for whatever reason, is info.
"""

import argparse
import logging
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from dualwrite.broker import BrokerProcess
from dualwrite.pytest_plugin import read_topic
from tests.history.checker import Anomaly, check
from tests.history.clients import CLIENTS, PARTITIONS, TOPIC
from tests.history.history import Poll, Recorder, Send, Status, Txn, load

BROKER_PAUSE = (1.0, 4.0)
ABORT_CHANCE = 0.1
OPS_MAX = 4
AMOUNT_MAX = 100
WORKERS_PER_CLIENT = 1

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.history.clients"])

Ops = list[Send | None]  # None is a poll


def append(chance: random.Random, name: str) -> Ops:
    """Appends to random lists (a list is a partition) and reads, mixed."""
    ops: Ops = []
    for n in range(chance.randint(1, OPS_MAX)):
        key = f"{TOPIC}/{chance.randrange(PARTITIONS)}"
        ops.append(Send(key, f"{name}:{n}") if chance.random() < 0.6 else None)
    return ops


def transfer(chance: random.Random, name: str) -> Ops:
    """Money goes from one account (a partition) to another; the sum over all accounts stays 0."""
    debtor, creditor = chance.sample(range(PARTITIONS), 2)
    amount = chance.randint(1, AMOUNT_MAX)
    ops: Ops = [
        Send(f"{TOPIC}/{debtor}", f"{name}:0={-amount}"),
        Send(f"{TOPIC}/{creditor}", f"{name}:1={amount}"),
    ]
    return [None, *ops] if chance.random() < 0.5 else ops


WORKLOADS: dict[str, Callable[[random.Random, str], Ops]] = {"append": append, "bank": transfer}


def work(client: str, process: str, bootstrap: str, path: Path, workload: str, seed: int) -> None:
    """One client that runs transactions until it is killed."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries that print what they think of kills
    recorder = Recorder(path)
    chance = random.Random(f"{seed} {process}")
    library = _patiently(lambda: CLIENTS[client](bootstrap, process))
    recorder.assign(process, from_start=True)
    _patiently(library.renew)
    number = 0
    while True:
        number += 1
        txn = Txn(process, number)
        ops = WORKLOADS[workload](chance, txn.name)
        txn.sends = [op for op in ops if op is not None]
        recorder.invoke(txn)
        txn.status = _transact(library, recorder, txn, ops, chance)
        recorder.complete(txn)
        if txn.status != "ok":
            _patiently(library.renew)


def _patiently(step: Callable[[], Any]) -> Any:
    while True:
        try:
            return step()
        except Exception:  # noqa: BLE001 - the broker is away; each library says it in another way
            time.sleep(0.1)


def _transact(
    library: Any, recorder: Recorder, txn: Txn, ops: Ops, chance: random.Random
) -> Status:
    try:
        library.begin()
        for op in ops:
            if chance.random() < ABORT_CHANCE / (len(ops) + 1):
                library.abort()
                return "fail"
            if op is None:
                _poll(library, txn)
            else:
                library.send(int(op.key.split("/")[1]), op.value)
        library.flush()
    except Exception:  # noqa: BLE001 - nobody has asked for the commit
        return "fail"
    for send, offset in zip(txn.sends, library.offsets, strict=True):
        send.offset = offset
    recorder.ask(txn)
    try:
        library.commit()
    except Exception:  # noqa: BLE001 - each library has its own
        return "info"
    return "ok"


def _poll(library: Any, txn: Txn) -> None:
    polls: dict[int, Poll] = {}
    for partition, offset, value in library.poll():
        poll = polls.setdefault(partition, Poll(f"{TOPIC}/{partition}", []))
        poll.seen.append((offset, value))
    txn.polls += polls.values()


@dataclass
class Report:
    """What was done, by client, and what the checker found."""

    seed: int
    workload: str
    kills: int = 0
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    records: int = 0
    anomalies: list[Anomaly] = field(default_factory=list)

    def __str__(self) -> str:
        each = "; ".join(
            f"{client} " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
            for client, counts in self.outcomes.items()
        )
        return (
            f"{self.workload}, seed {self.seed}: {self.kills} kills of the broker, {each};"
            f" {self.records} records, {len(self.anomalies)} anomalies"
        )


def run(directory: Path, workload: str, seed: int, seconds: float) -> Report:
    """Let all clients work for so long, kill the broker meanwhile, then settle, read and check."""
    report = Report(seed, workload)
    history = directory / "history"
    with BrokerProcess(directory / "data") as broker:
        bootstrap = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        names = [(c, f"{c}.{n}") for c in CLIENTS for n in range(WORKERS_PER_CLIENT)]
        workers = [
            _context.Process(
                target=work, args=(c, name, bootstrap, history, workload, seed), daemon=True
            )
            for c, name in names
        ]
        for worker in workers:
            worker.start()
        chance = random.Random(seed)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, chance.uniform(*BROKER_PAUSE)))
            broker.kill()
            report.kills += 1
            broker.start()
        for worker in workers:
            worker.kill()
            worker.join()
        for _, name in names:
            settle(bootstrap, name)
        _finish(bootstrap, history)
    return judge(history, report)


def settle(bootstrap: str, transactional_id: str) -> None:
    """End what a killed client left open."""
    producer = TwoPhaseProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(timeout=60)
    producer.close()


def _finish(bootstrap: str, history: Path) -> None:
    recorder = Recorder(history)
    seen: dict[int, list[tuple[int, str]]] = {p: [] for p in range(PARTITIONS)}
    for message in read_topic(TOPIC, bootstrap):
        seen[message.partition()].append((message.offset(), message.value().decode()))
    for partition, found in seen.items():
        recorder.write("final", key=f"{TOPIC}/{partition}", seen=found)
    recorder.close()


def judge(path: Path, report: Report) -> Report:
    history = load(path.read_text().splitlines())
    for client in CLIENTS:
        mine = (t.status for t in history.txns if t.process.rsplit(".", 1)[0] == client)
        report.outcomes[client] = Counter(mine)
    values = [value for poll in history.final or [] for _, value in poll.seen]
    report.records = len(values)
    report.anomalies = check(history)
    if report.workload == "bank" and (total := balance(values)):
        report.anomalies.append(Anomaly("bank", f"the accounts add up to {total}"))
    return report


def balance(values: list[str]) -> int:
    """The sum of all accounts."""
    return sum(int(value.partition("=")[2]) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, default="append")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="dualwrite-history-"))
    print(f"seed {options.seed}, history in {directory}", flush=True)
    report = run(directory, options.workload, options.seed, options.seconds)
    print(report)
    for anomaly in report.anomalies[:50]:
        print(f"  {anomaly.kind}: {anomaly.detail}")
    raise SystemExit(1 if report.anomalies else 0)


if __name__ == "__main__":
    main()
