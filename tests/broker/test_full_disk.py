"""A disk without room: producers are told so, everything that was promised goes on."""

import contextlib
import os
import subprocess
import threading
import time

import pytest
from confluent_kafka import Producer

from dualwrite.broker import BrokerProcess
from dualwrite.broker.storage.errors import DiskFull
from dualwrite.broker.storage.memory_disk import MemoryDisk
from dualwrite.pytest_plugin import read_topic
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


def fill_up(path):
    """Take every byte that the file system still has."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def prepare(client, name, topic="t"):
    """A prepared transaction with one record, its name; gives its pair."""
    mine = client.init_producer(name, 6, enable_2pc=True)
    pair = mine.producer_id, mine.producer_epoch
    data = batch(name.encode(), pair=pair, sequence=0, transactional=True)
    part = client.produce(topic, data, version=12, transactional_id=name)
    assert part.error_code == 0, part
    return pair


def produce_until(client, expected):
    deadline = time.monotonic() + 60
    while client.produce("t", batch(bytes(200_000))).error_code != expected:
        assert time.monotonic() < deadline, expected


def produce_until_full(client, turn):
    """Values of which each was acknowledged, until one is refused."""
    found = []
    while True:
        value = b"%d-%d " % (turn, len(found)) + bytes(100_000)
        answer = client.produce("raw", batch(value))
        if answer.error_code:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            return found
        found.append(value)


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
        fill_up(ballast)
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


class Patient(threading.Thread):
    """librdkafka's idempotent producer: it tries again until there is room."""

    def __init__(self, bootstrap_servers):
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "delivery.timeout.ms": 240_000,
                "queue.buffering.max.messages": 50,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._over = threading.Event()
        self.sent = []
        self.delivered = []

    def run(self):
        while not self._over.is_set():
            value = b"patient-%d" % len(self.sent) + b"." * 2_000
            with contextlib.suppress(BufferError):
                self._producer.produce("t", value, partition=0, on_delivery=self._on_delivery)
                self.sent.append(value)
            self._producer.poll(0.01)

    def _on_delivery(self, error, message):
        if error is None:
            self.delivered.append(message.value())

    def finish(self):
        self._over.set()
        self.join()
        assert self._producer.flush(240) == 0


def grow(path, mib):
    subprocess.run(["mount", "-o", f"remount,size={mib}m", str(path)], check=True)


def produce_until_room(client, turn):
    """The value that is acknowledged as the first after room has come back."""
    value = b"room again %d" % turn
    deadline = time.monotonic() + 60
    while client.produce("raw", batch(value)).error_code:
        assert time.monotonic() < deadline
    return value


def values(topic, broker):
    return [message.value() for message in read_topic(topic, broker.bootstrap_servers)]


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_on_a_disk_that_fills_again_and_again(small_disk, request):
    """The disk fills while clients write, transactions end, fetches go on, and room comes back."""
    rounds = 10 if request.config.getoption("--long") else 2
    ended, acknowledged = [], []
    with BrokerProcess(small_disk / "data", settings=SMALL) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            client.create_topic("t")
            client.create_topic("raw")
            client.create_topic("prepared")
        patient = Patient(broker.bootstrap_servers)
        patient.start()
        for turn in range(rounds):
            with RawClient(broker.bootstrap_servers) as client:
                names = [f"prepared-{turn}-{number}" for number in range(4)]
                pairs = {name: prepare(client, name, "prepared") for name in names}
                acknowledged += produce_until_full(client, turn)
            fill_up(small_disk / f"ballast-{turn}")
            for number, name in enumerate(names):
                with RawClient(broker.bootstrap_servers) as client:
                    commit = (turn + number) % 2 == 0
                    assert client.end_txn(name, pairs[name], commit=commit).error_code == 0
                ended += [name.encode()] * commit
                if number == 1:
                    broker.kill()
                if number in (1, 3):
                    broker.restart()
                assert values("prepared", broker) == ended
                assert values("raw", broker) == acknowledged
            grow(small_disk, 24 + 12 * (turn + 1))
            with RawClient(broker.bootstrap_servers) as client:
                acknowledged.append(produce_until_room(client, turn))
        patient.finish()
        print(f"{rounds} fillings: {len(acknowledged)} + {len(patient.sent)} acknowledged")
        broker.kill()
        broker.restart()

        assert patient.delivered == patient.sent
        assert values("t", broker) == patient.sent
        assert values("raw", broker) == acknowledged
        assert values("prepared", broker) == ended
