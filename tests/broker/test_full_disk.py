"""A disk without room: producers are told so, everything that was promised goes on."""

import contextlib
import os
import subprocess
import time

import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.broker.storage.errors import DiskFull
from dualwrite.broker.storage.memory_disk import MemoryDisk
from dualwrite.wire.error_codes import ErrorCode
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import RawClient, batch, fetch_request, produce_request

STARTS = 12
SMALL = {"journal.file.bytes": 4 << 20, "journal.reserve.bytes": 1 << 20}


def fill(driver):
    for _ in range(200):
        driver.send(produce_request("t", batch(b"x" * 50_000, timestamp_ms=WALL_MS)), 11)
        try:
            driver.node.flush(driver.now)
        except DiskFull:
            return
        if driver.connection.responses.pop().responses[0].partition_responses[0].error_code:
            return


@pytest.mark.parametrize("is_clean", [True, False])
def test_any_number_of_starts_on_a_full_disk(is_clean):
    disk = MemoryDisk(capacity=3_000_000)
    driver = NodeDriver(disk, journal_file_bytes=1_000_000, journal_reserve_bytes=200_000)
    driver.create_topic()
    names = [f"prepared-{number}" for number in range(STARTS)]
    pairs = {name: driver.begin(name, name.encode(), enable_2pc=True) for name in names}
    fill(driver)
    for number, name in enumerate(names):
        disk.capacity = disk.used
        if is_clean:
            driver.node.close()
        driver.crash()

        assert driver.end(name, pairs[name]).error_code == 0
        assert driver.init(f"new-{number}").error_code == 0
        part = driver.call(fetch_request("t", isolation_level=1), 12).responses[0].partitions[0]
        assert part.error_code == 0
        assert driver.produce(b"no room").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert driver.node.transactions.open_count() == 0
    disk.capacity = 30_000_000
    driver.pass_time(10_000)
    assert driver.produce(b"there is room again").error_code == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small tmpfs needs root: {done.stderr.strip() or os.geteuid()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def prepare(client, name):
    """A prepared transaction with one record; gives its pair."""
    mine = client.init_producer(name, 6, enable_2pc=True)
    pair = mine.producer_id, mine.producer_epoch
    data = batch(b"prepared", pair=pair, sequence=0, transactional=True)
    part = client.produce("t", data, version=12, transactional_id=name)
    assert part.error_code == 0, part
    return pair


def produce_until(client, expected):
    deadline = time.monotonic() + 60
    while client.produce("t", batch(bytes(200_000))).error_code != expected:
        assert time.monotonic() < deadline, expected


def test_a_full_file_system(small_disk):
    """A real broker: refuses producers, ends transactions over restarts, and recovers by itself."""
    names = [f"prepared-{number}" for number in range(6)]
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    with BrokerProcess(small_disk / "data", settings=SMALL) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("t")
            pairs = {name: prepare(client, name) for name in names}
            produce_until(client, ErrorCode.KAFKA_STORAGE_ERROR)
        with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        for number, name in enumerate(names):
            with RawClient(broker.bootstrap_servers) as client:
                assert client.end_txn(name, pairs[name]).error_code == 0
                assert client.init_producer(f"new-{number}", 6).error_code == 0
                assert client.fetch("t", isolation_level=1).error_code == 0
                answer = client.produce("t", batch(b"no room"))
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            if number % 2:
                broker.kill()
            broker.restart()
        ballast.unlink()
        with RawClient(broker.bootstrap_servers) as client:
            produce_until(client, ErrorCode.NONE)
