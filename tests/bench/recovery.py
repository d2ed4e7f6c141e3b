"""How long a start takes: `python -m tests.bench.recovery [MEGABYTES]`.

Prepared transactions after a clean stop and after a kill, and a journal that no checkpoint covers, once
with large batches and once with a tenth of it in small transactions. Each beside its goal and the time
that it takes to read the files alone. CPU beside wall time, because a busy machine shows in one of them
only.
"""

import sys
import tempfile
import time
from pathlib import Path

from dualwrite.broker.clock import Now
from dualwrite.broker.node import Node
from dualwrite.broker.settings import Settings
from dualwrite.broker.storage.disk import RealDisk
from dualwrite.broker.transactions.state import Pair
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import batch, produce_request

PREPARED = 10_000
NEVER = {"checkpoint.journal.bytes": 1 << 40, "checkpoint.interval.ms": (1 << 31) - 1}


class OnDisk(NodeDriver):
    """The driver of the tests on a real directory."""

    def __init__(self, path):
        self._path = path
        super().__init__(self, **NEVER)

    def attach(self):
        return RealDisk(self._path)

    def kill(self):
        self.node.storage.close()


def read_seconds(path):
    """The floor: all files of a directory, read once."""
    started = time.perf_counter()
    for file in Path(path).rglob("*"):
        if file.is_file():
            with file.open("rb") as content:
                while content.read(1 << 20):
                    pass
    return time.perf_counter() - started


def timed(what, path, goal):
    floor = read_seconds(path)
    wall, cpu = time.perf_counter(), time.process_time()
    node = Node.open(RealDisk(path), Settings.of(NEVER), WALL_MS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = node.transactions.open_count()
    print(
        f"{what}: {wall:.2f} s (goal {goal}), CPU {cpu:.2f} s, {wall / floor:.1f}x reading its files,"
        f" open transactions {count}",
        flush=True,
    )
    node.storage.close()


def prepared(path):
    driver = OnDisk(path)
    driver.create_topic()
    flush = driver.node.flush
    driver.node.flush = lambda now: None
    storage = driver.node.storage
    for number in range(PREPARED):
        _prepare(driver, f"txn-{number}", storage, flush)
    flush(driver.now)
    return driver


def _prepare(driver, name, storage, flush):
    """Without waiting for the disk each time."""
    decision = driver.node.transactions.init_producer_id(
        name, timeout_ms=60_000, enable_2pc=True, now=driver.now
    )
    driver.node.execute(decision, driver.now)
    data = batch(
        b"x" * 100, pair=decision.producer, sequence=0, transactional=True, timestamp_ms=WALL_MS
    )
    driver.send(produce_request("t", data, transactional_id=name), 12)
    if storage.position % 100 < 2:
        flush(driver.now)


def large(path, megabytes):
    driver = OnDisk(path)
    driver.create_topic()
    data = batch(*[b"x" * 1024] * 64, timestamp_ms=WALL_MS)
    for number in range(megabytes << 20 >> 16):
        driver.send(produce_request("t", data), 11)
        if number % 16 == 0:
            driver.node.flush(driver.now)
    driver.node.flush(driver.now)
    driver.kill()


def small(path, megabytes):
    driver = OnDisk(path)
    driver.create_topic()
    node = driver.node
    made = [driver.init(f"small-{number}") for number in range(64)]
    pairs = [(each.producer_id, each.producer_epoch) for each in made]
    now = Now(WALL_MS, driver.now.steady_ms)
    while node.storage._journal.bytes_written < megabytes << 20:
        for number, pair in enumerate(pairs):
            data = batch(
                b"x" * 100, pair=pair, sequence=0, transactional=True, timestamp_ms=WALL_MS
            )
            name = f"small-{number}"
            driver.send(produce_request("t", data, transactional_id=name), 12)
            decision = node.transactions.end_txn(name, Pair(*pair), commit=True, tv2=True, now=now)
            node.execute(decision, now)
            pairs[number] = decision.producer
        node.flush(now)
        driver.connection.responses.clear()
    driver.kill()


def main(megabytes):
    for what in ("clean", "killed"):
        with tempfile.TemporaryDirectory(prefix="recovery-") as path:
            driver = prepared(path)
            driver.node.close() if what == "clean" else driver.kill()
            timed(f"{PREPARED:,} prepared transactions, {what}", path, "<= 5 s")
    for write, size, goal in (
        (small, megabytes // 10, "none"),
        (large, megabytes, "<= 10 s for 1,024 MB"),
    ):
        with tempfile.TemporaryDirectory(prefix="recovery-") as path:
            write(path, size)
            timed(f"{size:,} MB of journal, {write.__name__} entries", path, goal)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
