"""Bits that flip in the files of a real broker: no client of another make is served a wrong byte.

The consumer is librdkafka, which checks every batch. A flip comes before the broker starts or under
its feet; the broker refuses to start and names the file, says a typed error for the partition, or
serves what was written.
"""

import random
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.broker import BrokerProcess
from dualwrite.broker.broker_process import BrokerProcessError
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.records import batches
from tests.broker.raw_client import RawClient

TOPIC = "flipped"
FLIPS, FLIPS_LONG = 20, 300
TRANSACTIONS = 30  # in each of two lives
VALUE_BYTES = 3000
SEGMENT_BYTES = 32 * 1024
AT_A_TIME = 3
SILENCE_S = 0.5
SILENCES = 120
SETTINGS = {
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
    "journal.file.bytes": 2**20,
    "journal.reserve.bytes": 2**20,
}
COMPRESSIONS = ("none", "lz4")  # by partition

# Committed values by partition.
Written = dict[int, list[bytes]]


class Flip(NamedTuple):
    file: Path
    """Relative to the data directory."""
    bit: int
    is_early: bool
    """Comes before the broker starts."""

    def apply(self, data: Path) -> None:
        with (data / self.file).open("r+b") as file:
            file.seek(self.bit // 8)
            (byte,) = file.read(1)
            file.seek(self.bit // 8)
            file.write(bytes([byte ^ 1 << self.bit % 8]))


def write(bootstrap: str, life: int, chance: random.Random, written: Written) -> None:
    """Transactions of a record each, in both partitions by turns; every fifth is aborted."""
    for index, compression in enumerate(COMPRESSIONS):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"writer-{index}",
                "compression.type": compression,
            }
        )
        producer.init_transactions(30)
        for number in range(TRANSACTIONS):
            value = (
                b"%d-%d-%d " % (life, index, number)
                + chance.randbytes(VALUE_BYTES // 2).hex().encode()
            )
            producer.begin_transaction()
            producer.produce(TOPIC, value, partition=index)
            if number % 5 == 4:
                producer.flush(30)
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
                written.setdefault(index, []).append(value)


def make_data(data: Path, chance: random.Random) -> Written:
    """A data directory with several segments, a checkpoint and a journal that goes beyond it."""
    written: Written = {}
    with BrokerProcess(data, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        config = {"segment.bytes": str(SEGMENT_BYTES)}
        made = admin.create_topics([NewTopic(TOPIC, len(COMPRESSIONS), 1, config=config)])
        made[TOPIC].result(30)
        write(broker.bootstrap_servers, 1, chance, written)
        broker.terminate()
        broker.start()
        write(broker.bootstrap_servers, 2, chance, written)
        # A flip in the last group can't be told from a torn write: nobody's record is in it.
        last = Producer({"bootstrap.servers": broker.bootstrap_servers})
        last.produce("last", b"last")
        assert last.flush(30) == 0
        broker.kill()
    return written


def draw(data: Path, chance: random.Random) -> Flip:
    """A bit of a byte that is not zero: what was only set aside would else get nearly all."""
    group = chance.choice(["journal", "logs", "logs", "checkpoint"])
    files = [
        p for p in sorted(data.rglob("*")) if p.is_file() and p.relative_to(data).parts[0] == group
    ]
    while True:
        file = chance.choice(files)
        content = file.read_bytes()
        for _ in range(100):
            if content and content[at := chance.randrange(len(content))]:
                bit = at * 8 + chance.randrange(8)
                return Flip(file.relative_to(data), bit, is_early=chance.random() < 0.5)


def storage_error(bootstrap: str, index: int, offset: int) -> int:
    """The code that a partition's readers get somewhere behind `offset`, or 0."""
    with RawClient(bootstrap) as client:
        while True:
            found = client.fetch(TOPIC, offset, partition=index, isolation_level=1)
            if found.error_code or not found.records:
                return int(found.error_code)
            *_, (_, last) = batches(bytes(found.records))
            offset = last.last_offset + 1


def read(bootstrap: str) -> tuple[Written, set[int]]:
    """What a checking consumer gets of each partition, and those that end in a typed error."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checking",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    found: Written = {index: [] for index in range(len(COMPRESSIONS))}
    ends = dict.fromkeys(found, 0)
    offline: set[int] = set()
    reading = set(found)
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in found])
    try:
        for _ in range(SILENCES):
            while reading and (message := consumer.poll(SILENCE_S)) is not None:
                index = message.partition()
                error = message.error()
                if error is None:
                    found[index].append(message.value())
                    ends[index] = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(index)
                else:
                    raise AssertionError(f"partition {index}: {error}")
            # librdkafka tries for ever what the broker says to be offline.
            for index in sorted(reading):
                code = storage_error(bootstrap, index, ends[index])
                assert code in (0, ErrorCode.KAFKA_STORAGE_ERROR)
                if code:
                    offline.add(index)
            reading -= offline
            if not reading:
                return found, offline
    finally:
        consumer.close()
    raise AssertionError(f"no end of {reading}: {ends}")


def check(past: Path, written: Written, numbered: tuple[int, Flip]) -> str:
    """Serve a directory with one flipped bit; raises if a wrong byte comes out."""
    number, flip = numbered
    data = past.with_name(f"flip-{number}")
    shutil.copytree(past, data)
    broker = BrokerProcess(data, settings=SETTINGS)
    try:
        if flip.is_early:
            flip.apply(data)
        if refusal := start(broker):
            assert flip.is_early, f"{flip}: {refusal}"
            assert str(flip.file) in refusal, f"{flip}: {refusal}"
            return "refused"
        if not flip.is_early:
            flip.apply(data)
        found, offline = read(broker.bootstrap_servers)
        assert flip.file.parts[0] == "logs" or not offline, flip
        for index, values in written.items():
            end = len(found[index]) if index in offline else None
            assert found[index] == values[:end], f"{flip}: a wrong byte, or one is missing"
        return "offline" if offline else "harmless"
    finally:
        broker.kill()
        shutil.rmtree(data)


def start(broker: BrokerProcess) -> str:
    """Why it refuses to start, or nothing."""
    try:
        broker.start()
    except BrokerProcessError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_flipped_bit_reaches_a_consumer(tmp_path, request, seed):
    chance = random.Random(seed)
    past = tmp_path / "past"
    written = make_data(past, chance)
    count = FLIPS_LONG if request.config.getoption("--long") else FLIPS
    # Of each kind one for certain.
    segment = max(past.glob("logs/*/*.log"), key=lambda path: path.stat().st_size)
    flips = [
        Flip(segment.relative_to(past), 8 * 1000, is_early=True),
        Flip(segment.relative_to(past), 8 * 1000, is_early=False),
        Flip(Path("checkpoint"), 8 * 20, is_early=True),
        *(draw(past, chance) for _ in range(count - 3)),
    ]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        verdicts = list(pool.map(partial(check, past, written), enumerate(flips)))
    told = Counter(
        (flip.file.parts[0], "before" if flip.is_early else "after", verdict)
        for flip, verdict in zip(flips, verdicts, strict=True)
    )
    for (group, moment, verdict), number in sorted(told.items()):
        print(f"{group}, {moment} the start: {number} {verdict}")
    assert verdicts[:3] == ["offline", "offline", "refused"]
