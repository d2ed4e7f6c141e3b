"""Every durable system call of a scenario goes wrong in every way that it can: the process dies before
it, a write is half done, it fails with EIO or with ENOSPC.

The scenario begins where a killed broker has left off, so recovery's own calls are among them, takes
a checkpoint after every few of them, and deletes a topic. The default run takes a sample in which
every kind of call occurs, with a printed seed; `--long` takes every call in every way that its kind
has.

    pytest -s tests/faults/test_syscalls.py
    SEED=7 pytest tests/faults/test_syscalls.py      the same sample again
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.pytest_plugin import read_topic
from tests.faults.failing_os import KINDS, WAYS, WRITES, can_go, counted
from tests.faults.scenario import (
    PARTITIONS,
    PATIENCE_AFTERWARDS,
    TOPIC,
    Story,
    live,
    producer,
    verify,
)

ROOT = Path(__file__).parents[2]
SAMPLE = 40
RECOVERY_SAMPLE = 8
AT_A_TIME = 4
STORAGE_FAILED = 70
KILLED = -signal.SIGKILL
# With no space for these a broker goes on; a sync that fails ends it, whatever the reason.
LIVES_WITHOUT_SPACE = {"pwrite", "pwritev", "create"}
SYNCS = ("fsync", "fdatasync")
# In every sample, beside each kind in some way.
MUSTS = [*((kind, "enospc") for kind in SYNCS), *((kind, "half") for kind in WRITES)]
LOOKS_MS = 5
SECONDS = 4.0
OLD_TOPIC = "past"
# More than a broker keeps in memory, so that its segment is longer than the last checkpoint says.
OLD_RECORDS, OLD_BYTES = 7, 100_000
MANY = 1000

Deletion = Literal["not asked for", "asked for", "done"]


@dataclass(frozen=True)
class Outcome:
    """What became of a broker one of whose calls went wrong."""

    how: str
    kind: str
    """Of the call, empty if the broker did not come to it."""
    ending: str
    """Dies of the fault, exits with a code, or lives on until it is killed."""
    deletion: Deletion


class FailingBroker:
    """A broker process on `directory`; with `at` one durable call goes wrong.

    `tracer` is what its command begins with.
    """

    def __init__(
        self,
        directory: Path,
        at: int = 0,
        how: str = "kill",
        looks_ms: int = LOOKS_MS,
        tracer: Sequence[str] = (),
    ) -> None:
        self.counter = directory / "counter"
        self.counter.unlink(missing_ok=True)
        command = [
            *tracer, sys.executable, "-m", "tests.faults.failing_os",
            "--at", str(at), "--how", how, "--counter", str(self.counter),
            "--looks-ms", str(looks_ms),
            "--", "broker", "--listen", "127.0.0.1:0", "--data-dir", str(directory / "data"),
            "--set", "transaction.state.log.num.partitions=2",
            "--set", "offsets.topic.num.partitions=2",
            "--set", "journal.reserve.bytes=1048576",
            "--set", f"checkpoint.journal.bytes={1 if looks_ms == LOOKS_MS else 2**27}",
        ]  # fmt: skip
        self.log = directory / f"broker-{at}-{how}.log"
        self._stderr = self.log.open("ab")
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._stderr, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.bootstrap = line.removeprefix("listening on ").strip()

    @property
    def calls(self) -> list[str]:
        """The kinds of the durable calls so far."""
        return [kind for kind, _ in counted(self.counter)]

    @property
    def is_serving(self) -> bool:
        """Whether it can be asked for anything: it has said where, and not died since."""
        return bool(self.bootstrap) and self.process.poll() is None

    def end(self, *, is_dying: bool = False) -> int:
        """Kill it if it lives, unless it must be ending by itself, and return how it ended."""
        if not is_dying:
            self.process.kill()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the broker of {self.log} does not end") from None
        finally:
            self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()
        return code


def make_past(directory: Path) -> int:
    """A data directory in which a killed broker has left more than its last checkpoint covers.

    Gives the number of records in it.
    """
    first = FailingBroker(directory)
    create_topic(first.bootstrap, OLD_TOPIC)
    begin, count = first.calls.count("rename"), 0
    while first.calls.count("rename") < begin + 2:  # checkpoints that hold the topic
        fill(first.bootstrap, count, 1)
        count += 1
        assert count < MANY, "no checkpoints"
    first.end()
    second = FailingBroker(directory, looks_ms=60_000)
    fill(second.bootstrap, count, OLD_RECORDS)
    second.end()
    return count + OLD_RECORDS


def fill(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + count):
        producer.produce(OLD_TOPIC, f"{number:0{OLD_BYTES}d}", partition=0)
        assert producer.flush(30) == 0  # a batch each


def create_topic(bootstrap: str, name: str = TOPIC) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1)], request_timeout=SECONDS)
    made[name].exception(2 * SECONDS)  # it may be there already, or the broker is gone


def delete_past(bootstrap: str) -> bool:
    """True if the broker said that the old topic is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deleted = admin.delete_topics([OLD_TOPIC], request_timeout=SECONDS)
    return deleted[OLD_TOPIC].exception(2 * SECONDS) is None


def check_past(bootstrap: str, count: int, deletion: Deletion) -> None:
    """The old topic is there with everything, or gone with everything if somebody asked for that."""
    found = [int(message.value()[-9:]) for message in read_topic(OLD_TOPIC, bootstrap)]
    everything = list(range(count))
    match deletion:
        case "not asked for":
            assert found == everything, "lost, and nobody asked for that"
        case "asked for":
            assert found in ([], everything)
        case "done":
            assert not found, "it comes back"
    if not found:
        names = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
        assert OLD_TOPIC not in names, "its records are gone, and it is there"


def life(broker: FailingBroker) -> tuple[Story, Deletion]:
    """The scenario, behind the end of an old topic; as much of it as the broker survives."""
    story = Story()
    deletion: Deletion = "not asked for"
    if broker.is_serving:
        deletion = "done" if delete_past(broker.bootstrap) else "asked for"
    if broker.is_serving:
        create_topic(broker.bootstrap)
    if broker.is_serving:
        live(broker.bootstrap, story)
    return story, deletion


def durable_calls(past: Path, directory: Path) -> tuple[list[str], int]:
    """What the scenario asks of the disk from the start of the broker on, and how much of it before
    anybody can ask the broker for anything."""
    shutil.copytree(past, directory)
    broker = FailingBroker(directory)
    of_recovery = len(broker.calls)
    story, deletion = life(broker)
    calls = broker.calls
    broker.end()
    assert story.is_complete
    assert deletion == "done"
    return calls, of_recovery


def cases(
    calls: list[str], of_recovery: int, chance: random.Random, *, is_long: bool
) -> list[tuple[int, str]]:
    """Calls and ways, no two of which are the same: what is no write has no half."""
    ways = {kind: [how for how in WAYS if can_go(kind, how)] for kind in KINDS}
    everything = [(at, how) for at, kind in enumerate(calls, 1) for how in ways[kind]]
    if is_long:
        return everything
    chosen = {
        (chance.choice([at for at, kind in enumerate(calls, 1) if kind == wanted]), how)
        for wanted, how in (*((kind, chance.choice(ways[kind])) for kind in KINDS), *MUSTS)
    }
    of_recovery_alone = [(at, how) for at, how in everything if at <= of_recovery]
    chosen.update(chance.sample(of_recovery_alone, RECOVERY_SAMPLE))
    while len(chosen) < SAMPLE:
        chosen.add(chance.choice(everything))
    return sorted(chosen)


def chosen_seed(config: pytest.Config) -> int:
    """What somebody asks for, by option or environment; else another one in every run."""
    seed = config.getoption("--seed", None)
    return int(os.environ.get("SEED", random.randrange(10**6)) if seed is None else seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_nothing_acknowledged_is_lost_at_any_durable_call(tmp_path, request):
    seed = chosen_seed(request.config)
    print(f"seed {seed}")
    past = tmp_path / "past"
    past.mkdir()
    old = make_past(past)
    calls, of_recovery = durable_calls(past, tmp_path / "counted")
    kinds = Counter(calls)
    assert set(kinds) == set(KINDS), f"the scenario asks for no {set(KINDS) - set(kinds)}"
    is_long = request.config.getoption("--long")
    chosen = cases(calls, of_recovery, random.Random(seed), is_long=is_long)
    assert len(set(chosen)) == len(chosen)
    print(f"{len(calls)} durable calls, {of_recovery} of them recovery's: {dict(kinds)}")

    with ThreadPoolExecutor(AT_A_TIME) as pool:  # they mostly wait for a broker that is dead
        checks = [pool.submit(check_case, past, old, tmp_path, *case) for case in chosen]
    failed = [case for case, done in zip(chosen, checks, strict=True) if done.exception()]
    print(f"{len(failed)} of {len(chosen)} fail: {failed}")
    found = [done.result() for done in checks]
    reached = [outcome for outcome in found if outcome.kind]
    deletions = Counter(outcome.deletion for outcome in found)
    ends = Counter((outcome.how, outcome.kind, outcome.ending) for outcome in reached)
    print(f"{len(chosen)} distinct cases, {len(reached)} reached")
    for (how, kind, ending), number in sorted(ends.items()):
        print(f"  {how} {kind}: {number} {ending}")
    print(f"deletion of the old topic: {dict(deletions)}")
    assert deletions["not asked for"], "no case spoiled recovery"
    # When a checkpoint comes is not the same in every life.
    assert len(reached) > len(chosen) * 3 / 4


def check_case(past: Path, old: int, tmp_path: Path, at: int, how: str) -> Outcome:
    """One call goes wrong in one way, and a broker without faults finds what is left."""
    directory = tmp_path / f"{at}-{how}"
    shutil.copytree(past, directory)
    broker = FailingBroker(directory, at, how)
    kind = ""
    try:
        story, deletion = life(broker)
        if len(calls := broker.calls) >= at and can_go(calls[at - 1], how):
            kind = calls[at - 1]  # maybe not the kind that was counted
    finally:
        code = broker.end(is_dying=bool(kind) and must_stop(kind, how))
    is_dead = how in ("kill", "half")
    ending = f"exits {code}" if code != KILLED else "dies" if is_dead else "lives on"
    outcome = Outcome(how, kind, ending, deletion)
    if kind:
        check_ending(outcome, at)

    again = FailingBroker(directory)
    try:
        assert again.bootstrap, f"no start after {how} at call {at}: {again.log.read_text()}"
        check_past(again.bootstrap, old, deletion)
        create_topic(again.bootstrap)
        verify(story, again.bootstrap)
        assert live_again(again.bootstrap), f"no second life after {how} at call {at}"
    finally:
        again.end()
    shutil.rmtree(directory)
    return outcome


def must_stop(kind: str, how: str) -> bool:
    """Whether a broker ends by itself: of all but a lack of space, and that too if a sync meets it."""
    return how != "enospc" or kind in SYNCS


def check_ending(outcome: Outcome, at: int) -> None:
    what = f"{outcome.ending} after {outcome.how} at call {at}, {outcome.kind}"
    if outcome.how in ("kill", "half"):
        assert outcome.ending == "dies", what
    elif must_stop(outcome.kind, outcome.how):
        assert outcome.ending == f"exits {STORAGE_FAILED}", what
    elif outcome.kind in LIVES_WITHOUT_SPACE:
        assert outcome.ending == "lives on", what
    else:
        assert outcome.ending in ("lives on", f"exits {STORAGE_FAILED}"), what


def live_again(bootstrap: str) -> bool:
    """The broker works after recovery: an ordinary transaction of another id goes through."""
    writer = producer(bootstrap, "afterwards", patience=PATIENCE_AFTERWARDS)
    try:
        writer.init_transactions()
        writer.begin_transaction()
        writer.produce(TOPIC, b"afterwards", partition=0)
        writer.commit_transaction()
    finally:
        writer.close()
    return True
