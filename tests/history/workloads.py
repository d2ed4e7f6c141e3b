"""List-append and bank through real clients while much goes wrong, recorded for the checker.

One client writes a row in SQLite with its records, and LSO and HW are asked for all the time.

    python -m tests.history.workloads --workload bank --seconds 300 --faults kill,cut,slow

Outcomes are three: ok, fail (it definitely did not happen) and info (unknown). Only what ends before
anybody has asked for the commit can fail; a commit without an answer, for whatever reason, is info.
"""

import argparse
import contextlib
import logging
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from dualwrite.broker import BrokerProcess
from dualwrite.pytest_plugin import read_topic
from tests.bounce.clients import LIBRDKAFKA
from tests.bounce.clients import Place as DualPlace
from tests.faults.jumping_clock import CHORES, Clock, broker_command
from tests.faults.proxy import FaultProxy
from tests.faults.tight_settings import tight_settings
from tests.history import dual_writes
from tests.history.checker import Anomaly, check
from tests.history.clients import CLIENTS, PARTITIONS, TOPIC
from tests.history.history import History, Poll, Recorder, Send, Status, Txn, load
from tests.history.leftovers import unfinished
from tests.history.lives import Client
from tests.history.progress import START, Done, Progress
from tests.history.trouble import EVERY_KIND, FAULTS, FIRST_FAULT, Trouble
from tests.history.watermarks import Watcher

ABORT_CHANCE = 0.1
ALONE_CHANCE = 0.2
OPS_MAX = 4
AMOUNT_MAX = 100
WORKERS = 1
"""Of each library."""
SUBSCRIBERS = 2
SUBSCRIBER = "subscriber"
DUAL = "dual"
KEYS = [f"{TOPIC}/{p}" for p in range(PARTITIONS)]
WATERMARKS_PAUSE = (0.2, 0.2)
BEGIN_SECONDS_MAX = 60
TOLD_AT_ONCE = 50
"""Records of a partition after which a subscriber tells what it has read, pause or not."""
OVERTIME_SECONDS_MAX = 400
"""How much longer it may take until every kind of fault has struck and everybody has gone on."""
CHORE_MS = 500

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


@dataclass(frozen=True)
class Place:
    """What every client is told; travels to their processes."""

    bootstrap: str
    history: Path
    workload: str
    seed: int

    @property
    def dual(self) -> DualPlace:
        return dual_writes.place_of(self.bootstrap, self.history)


def work(place: Place, process: str, client: str) -> None:
    """One client that runs transactions until it is killed."""
    _be_quiet()
    recorder = Recorder(place.history)
    chance = random.Random(f"{place.seed} {process}")
    transactional_id = process.rpartition(".")[0]  # the same in every life
    library = _patiently(lambda: CLIENTS[client](place.bootstrap, transactional_id))
    recorder.assign(process, from_start=True)
    _patiently(library.renew)
    loner = Loner(process)
    number = 0
    while True:
        # A single record would be no transfer of money.
        if place.workload == "append" and library.sends_alone and chance.random() < ALONE_CHANCE:
            loner.send(library, recorder, chance.randrange(PARTITIONS))
            continue
        number += 1
        txn = Txn(process, number)
        ops = WORKLOADS[place.workload](chance, txn.name)
        txn.sends = [op for op in ops if op is not None]
        recorder.invoke(txn)
        txn.status = _transact(library, recorder, txn, ops, chance)
        recorder.complete(txn)
        if txn.status != "ok":
            _patiently(library.renew)


def dual_write(place: Place, process: str) -> None:
    """The same records beside a row each."""
    _be_quiet()

    def draw(chance: random.Random, name: str) -> list[Send]:
        return [op for op in WORKLOADS[place.workload](chance, name) if op is not None]

    dual_writes.write(place.dual, process, place.seed, draw)


def _be_quiet() -> None:
    """Libraries print what they think of kills."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class Loner:
    """Sends records outside of transactions: each can be seen as soon as it is sent.

    A new idempotent producer does not come after what its predecessor may still have under way, so
    it goes by another name.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self._producers = 1
        self._number = 0

    def send(self, library: Any, recorder: Recorder, partition: int) -> None:
        self._number += 1
        txn = Txn(f"{self._process}.alone{self._producers}", self._number)
        txn.sends = [Send(f"{TOPIC}/{partition}", f"{txn.name}:0")]
        recorder.invoke(txn)
        recorder.ask(txn)
        try:
            txn.sends[0].offset = library.send_alone(partition, txn.sends[0].value)
            txn.status = "ok"
        except Exception:  # noqa: BLE001 - each library has its own
            txn.status = "info"
            self._producers += 1
            with contextlib.suppress(Exception):
                library.forget_loner()
        recorder.complete(txn)


def subscribe(place: Place, process: str) -> None:
    """A member of a group that reads what it is given, from where the group has come to."""
    _be_quiet()
    recorder = Recorder(place.history)
    polls: dict[str, Poll] = {}
    number = 0

    def tell(*_: object) -> None:
        """Record what was read, and only then let it be committed: less may be, but never more."""
        nonlocal number
        if polls:
            number += 1
            recorder.complete(Txn(process, number, "ok", polls=[*polls.values()]))
            ends = [
                ConfluentPartition(TOPIC, int(p.key.split("/")[1]), p.seen[-1][0] + 1)
                for p in polls.values()
            ]
            polls.clear()
            with contextlib.suppress(KafkaException):  # they are another's by now
                consumer.store_offsets(offsets=ends)

    def assigned(*_: object) -> None:
        tell()
        recorder.assign(process)

    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": SUBSCRIBER,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
            "enable.auto.offset.store": False,
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 50,
            **LIBRDKAFKA,
        }
    )
    consumer.subscribe([TOPIC], on_assign=assigned, on_revoke=tell)
    while True:
        message = consumer.poll(0.1)  # one by one: a batch could reach over an assignment
        if message is None or message.error() is not None:
            tell()
            continue
        key = f"{TOPIC}/{message.partition()}"
        seen = polls.setdefault(key, Poll(key, [])).seen
        seen.append((message.offset(), message.value().decode()))
        if len(seen) >= TOLD_AT_ONCE:
            tell()  # a topic that is always busy leaves no pause for it


def _patiently(step: Callable[[], Any]) -> Any:
    while True:
        try:
            return step()
        except Exception:  # noqa: BLE001 - the broker is away; each library says it in another way
            time.sleep(0.1)


def _transact(
    library: Any, recorder: Recorder, txn: Txn, ops: Ops, chance: random.Random
) -> Status:
    abort_chance = ABORT_CHANCE / (len(ops) + 1)
    try:
        library.begin()
        for op in ops:
            if chance.random() < abort_chance:
                library.abort()
                return "fail"
            if op is None:
                _poll(library, txn)
            else:
                library.send(int(op.key.split("/")[1]), op.value)
        library.flush()
        if chance.random() < ABORT_CHANCE:  # of records that all have been acknowledged
            library.abort()
            return "fail"
    except Exception:  # noqa: BLE001 - nobody has asked for the commit
        return "fail"
    finally:
        # What was acknowledged counts, whatever became of it; what was not sent has no entry.
        for send, offset in zip(txn.sends, library.offsets, strict=False):
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
    seconds: float = 0
    """How long there was trouble."""
    faults: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    """How many processes, connections and frames each kind of fault has met."""
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    alone: Counter[str] = field(default_factory=Counter)
    """Outcomes of the records that were sent outside of transactions."""
    aborted: Counter[str] = field(default_factory=Counter)
    """Acknowledged records of transactions that failed, by client."""
    subscribed: int = 0
    """Records that the group's members have seen."""
    reached: int = 0
    """Offsets that the group has come to, of all partitions."""
    records: int = 0
    rows: int = 0
    watermarks: int = 0
    """How often all partitions' LSO and HW were told."""
    done: dict[str, Done] = field(default_factory=dict)
    """By clients since the phases began."""
    missing: list[str] = field(default_factory=list)
    """Kinds of faults that did not strike, and who did nothing in trouble."""
    anomalies: list[Anomaly] = field(default_factory=list)

    def __str__(self) -> str:
        faults = sorted((kind, n, self.hits[kind]) for kind, n in self.faults.items())
        drawn = ", ".join(f"{n} {kind} ({hits})" for kind, n, hits in faults)
        each = "; ".join(f"{client} {_told(n)}" for client, n in self.outcomes.items())
        since = "".join(f"\n  since {phase}: {done}" for phase, done in self.done.items())
        return (
            f"{self.workload}, seed {self.seed}, {self.seconds:.0f} s: faults (hits): {drawn};"
            f" transactions: {each};"
            f" alone: {_told(self.alone)}; acknowledged and aborted: {_told(self.aborted)};"
            f" {self.subscribed} records read by a group, up to {self.reached};"
            f" {self.records} records, {self.rows} rows, {self.watermarks} looks at the watermarks,"
            f" {len(self.anomalies)} anomalies"
            f"{since}"
        )


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "none"


def run(
    directory: Path, workload: str, seed: int, seconds: float, kinds: Sequence[str] = FAULTS
) -> Report:
    """Let all clients work among faults for so long, then settle, read and check."""
    report = Report(seed, workload)
    clock = Clock(directory / "clock")
    with FaultProxy() as proxy:
        settings = {
            **tight_settings(seed),
            **dict.fromkeys(CHORES, CHORE_MS),
            # A clock that is behind must not refuse what the clients' clocks say.
            "log.message.timestamp.after.max.ms": 2**63 - 1,
            "advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}",
        }
        command = broker_command(clock)
        with BrokerProcess(directory / "data", settings=settings, command=command) as broker:
            proxy.target = ("127.0.0.1", broker.port)
            place = Place(proxy.bootstrap_servers, directory / "history", workload, seed)
            admin = AdminClient({"bootstrap.servers": place.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
            dual_writes.create(place.dual)
            recorder = Recorder(place.history)
            watcher = Watcher(recorder, place.bootstrap, KEYS)
            clients = [
                Client(dual_write, f"{DUAL}.0", place),
                *(Client(work, f"{c}.{n}", place, c) for c in CLIENTS for n in range(WORKERS)),
                *(Client(subscribe, f"{SUBSCRIBER}.{n}", place) for n in range(SUBSCRIBERS)),
            ]
            progress = _progress_of(clients, place.history)
            try:
                _wait_for_all(progress)
                trouble = Trouble(broker, proxy, clock, clients, recorder, kinds)
                report.faults, report.hits = trouble.drawn, trouble.hits
                report.seconds = trouble.run(
                    seed,
                    seconds,
                    {"watermarks": (WATERMARKS_PAUSE, watcher.look)},
                    until=lambda: not _missing(progress),
                    overtime=OVERTIME_SECONDS_MAX,
                )
                ended = [c.name for c in clients if not c.process.is_alive()]
                assert not ended, f"ended by themselves: {ended}"
            finally:
                for client in clients:
                    client.kill()
            report.missing = [*trouble.missing(), *_missing(progress)]
            report.done = {phase: done for phase, done in progress.since.items() if phase != START}
            for client in clients:
                if client.name.startswith(tuple(CLIENTS)):
                    settle(place.bootstrap, client.name)
            report.rows = dual_writes.finish(place.dual, recorder)
            watcher.look()
            report.watermarks = watcher.answers
            _finish(place, recorder)
            report.anomalies += unfinished(place.bootstrap, KEYS)
    return judge(place.history, report)


def _progress_of(clients: Sequence[Client], path: Path) -> Progress:
    names = [client.name for client in clients]
    return Progress(
        path,
        writers=[name for name in names if not name.startswith(SUBSCRIBER)],
        readers=[name for name in names if not name.startswith(DUAL)],
    )


def _missing(progress: Progress) -> list[str]:
    """Who has not gone on in trouble: all commit after every kind has struck.

    A reader begins anew in each life, with all that there is; so it has more time to find new records.
    """
    return [*progress.missing(FIRST_FAULT), *progress.idle_writers(EVERY_KIND)]


def _wait_for_all(progress: Progress) -> None:
    """Until everybody has done something: faults are for those who work."""
    deadline = time.monotonic() + BEGIN_SECONDS_MAX
    while missing := progress.missing(START):
        assert time.monotonic() < deadline, missing
        time.sleep(0.1)


def settle(bootstrap: str, transactional_id: str) -> None:
    """End what a killed client left open."""
    producer = TwoPhaseProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(timeout=60)
    producer.close()


def _finish(place: Place, recorder: Recorder) -> None:
    seen: dict[int, list[tuple[int, str]]] = {p: [] for p in range(PARTITIONS)}
    for message in read_topic(TOPIC, place.bootstrap):
        seen[message.partition()].append((message.offset(), message.value().decode()))
    for partition, found in seen.items():
        recorder.write("final", key=f"{TOPIC}/{partition}", seen=found)
    for partition in _subscribed(place):
        key = f"{TOPIC}/{partition.partition}"
        recorder.write("reached", group=SUBSCRIBER, key=key, offset=partition.offset)
    recorder.close()


def _subscribed(place: Place) -> list[ConfluentPartition]:
    """How far the group has come."""
    consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": SUBSCRIBER})
    try:
        asked = [ConfluentPartition(TOPIC, p) for p in range(PARTITIONS)]
        return list(consumer.committed(asked, 60))
    finally:
        consumer.close()


def judge(path: Path, report: Report) -> Report:
    history = load(path.read_text().splitlines())
    _count(history, report)
    values = [value for poll in history.final or [] for _, value in poll.seen]
    report.records = len(values)
    report.reached = sum(max(0, offset) for offset in history.reached.values())
    report.anomalies += check(history)
    if report.workload == "bank" and (total := balance(values)):
        report.anomalies.append(Anomaly("bank", f"the accounts add up to {total}"))
    return report


def _count(history: History, report: Report) -> None:
    report.outcomes = {client: Counter() for client in (*CLIENTS, DUAL)}
    for txn in history.txns:
        client = txn.process.split(".")[0]
        if client == SUBSCRIBER:
            report.subscribed += sum(len(poll.seen) for poll in txn.polls)
        elif ".alone" in txn.process:
            report.alone[txn.status] += 1
        else:
            report.outcomes[client][txn.status] += 1
            if txn.status == "fail":
                report.aborted[client] += sum(send.offset >= 0 for send in txn.sends)


def balance(values: list[str]) -> int:
    """The sum of all accounts."""
    return sum(int(value.partition("=")[2]) for value in values)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, default="append")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--faults", default=",".join(FAULTS), help="kinds, separated by commas")
    options = parser.parse_args()
    kinds = options.faults.split(",")
    if unknown := set(kinds) - set(FAULTS):
        parser.error(f"no faults of ours: {', '.join(sorted(unknown))}")
    directory = Path(tempfile.mkdtemp(prefix="dualwrite-history-"))
    print(f"seed {options.seed}, history in {directory}", flush=True)
    report = run(directory, options.workload, options.seed, options.seconds, kinds)
    print(report)
    for anomaly in report.anomalies[:50]:
        print(f"  {anomaly.kind}: {anomaly.detail}")
    raise SystemExit(1 if report.anomalies else 0)


if __name__ == "__main__":
    main()
