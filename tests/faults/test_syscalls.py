"""Every durable system call of a scenario goes wrong once: before it, half-way, or with an error.

The default run takes a sample with a printed seed; `--long` takes every call in every way.
"""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.scenario import PARTITIONS, TOPIC, live, verify

ROOT = Path(__file__).parents[2]
WAYS = ("kill", "half", "eio", "enospc")
SAMPLE = 12
AT_A_TIME = 4
SEED = 20_261_118
STORAGE_FAILED = 70


class FailingBroker:
    """A broker process on `directory`; with `at` one durable call goes wrong."""

    def __init__(self, directory: Path, at: int = 0, how: str = "kill") -> None:
        self.counter = directory / "counter"
        self.counter.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "tests.faults.failing_os",
            "--at", str(at), "--how", how, "--counter", str(self.counter),
            "--", "broker", "--listen", "127.0.0.1:0", "--data-dir", str(directory / "data"),
            "--set", "transaction.state.log.num.partitions=2",
            "--set", "offsets.topic.num.partitions=2",
            "--set", "journal.reserve.bytes=1048576",
        ]  # fmt: skip
        self._log = (directory / f"broker-{at}-{how}.log").open("ab")
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.bootstrap = line.removeprefix("listening on ").strip()

    @property
    def calls(self) -> int:
        return self.counter.stat().st_size

    def end(self) -> int:
        """Kill it if it lives, and return how it ended."""
        self.process.kill()
        code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.exception(4)  # it may be there already, or the broker is gone


def count_calls(directory: Path) -> int:
    broker = FailingBroker(directory)
    create_topic(broker.bootstrap)
    story = live(broker.bootstrap)
    calls = broker.calls
    broker.end()
    assert story.is_complete
    return calls


def cases(calls: int, is_long: bool) -> list[tuple[int, str]]:
    everything = [(at, how) for at in range(1, calls + 1) for how in WAYS]
    if is_long:
        return everything
    # A sample that holds every way, spread over the whole life of the broker.
    chance = random.Random(SEED)
    return sorted(chance.sample(everything, min(SAMPLE, len(everything))))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_at_any_durable_call(tmp_path, request):
    calls = count_calls(tmp_path)
    chosen = cases(calls, request.config.getoption("--long"))
    print(f"{calls} durable calls, {len(chosen)} cases, seed {SEED}")
    with ThreadPoolExecutor(AT_A_TIME) as pool:  # they mostly wait for a broker that is dead
        for _ in pool.map(lambda case: check_case(tmp_path, *case), chosen):
            pass


def check_case(tmp_path: Path, at: int, how: str) -> None:
    directory = tmp_path / f"{at}-{how}"
    directory.mkdir()
    broker = FailingBroker(directory, at, how)
    story = None
    if broker.bootstrap:
        create_topic(broker.bootstrap)
        story = live(broker.bootstrap)
    reached = broker.calls >= at
    code = broker.end()
    if how == "eio" and reached:
        assert code == STORAGE_FAILED, f"exit code {code} after EIO at call {at}"

    again = FailingBroker(directory)
    try:
        assert again.bootstrap, f"no start after {how} at call {at}: see {directory}"
        if story is not None:
            create_topic(again.bootstrap)
            verify(story, again.bootstrap)
        assert live_again(again.bootstrap), f"no second life after {how} at call {at}"
    finally:
        again.end()


def live_again(bootstrap: str) -> bool:
    """The broker works after recovery: an ordinary transaction of another id goes through."""
    from tests.faults.scenario import producer

    writer = producer(bootstrap, "afterwards")
    try:
        writer.init_transactions()
        writer.begin_transaction()
        writer.produce(TOPIC, b"afterwards", partition=0)
        writer.commit_transaction()
    finally:
        writer.close()
    return True
