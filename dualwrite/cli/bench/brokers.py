"""The broker itself: start, memory, produce and fetch throughput, idle connections.

One peer is librdkafka's in-memory mock cluster, which keeps nothing on disk: what is lost against it is
the price of durability and of Python together. The other is Apache Kafka where it can be had.
"""

import contextlib
import os
import resource
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from dualwrite.cli.bench.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_jars
from dualwrite.cli.bench.report import Report, Row
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.api_versions import ApiVersionsRequest

VALUE = bytes(1024)
TOPIC = "bench-throughput"
SECTION = "broker"
IDLE_CONNECTIONS = 10_000
START, IDLE, BUSY = "start to ready, empty", "memory when idle", "memory after produce and fetch"
PRODUCE, FETCH = "produce 1 KiB", "fetch 1 KiB"


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def produce(bootstrap: str, seconds: float) -> float:
    """Messages per second until everything is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    )
    sent = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(1000):
            try:
                producer.produce(TOPIC, VALUE, partition=0)
                sent += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    producer.flush()
    return sent / (time.perf_counter() - begin)


def fetch(bootstrap: str, seconds: float) -> float:
    """Messages per second of a reader that starts at the beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.min.bytes": 1})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    got = 0
    begin = 0.0
    deadline = time.perf_counter() + seconds + 10
    try:
        while time.perf_counter() < deadline:
            batch = consumer.consume(10_000, 0.2)
            if not begin and batch:
                begin = time.perf_counter()
                deadline = begin + seconds
            elif not batch and got:
                break
            got += len(batch)
        return got / (time.perf_counter() - begin) if got else float("nan")
    finally:
        consumer.close()


@contextlib.contextmanager
def mock_cluster() -> Iterator[str]:
    # It would tell that it is one.
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    broker = next(iter(owner.list_topics(timeout=10).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    owner.flush()


def idle_connections_mib(bootstrap: str, pid: int) -> tuple[int, float]:
    """How much the broker grows for many connections that say nothing."""
    host, _, port = bootstrap.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(IDLE_CONNECTIONS, hard - 500)
    before = rss_mib(pid)
    with contextlib.ExitStack() as stack:
        ends = stack.enter_context(selectors.DefaultSelector())
        for _ in range(count):
            link = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            ends.register(link, selectors.EVENT_READ)
        # They are accepted in turn: when the last has an answer, all are held or hung up on.
        link.sendall(encode_request(ApiVersionsRequest(), 0, 0, "bench"))
        with link.makefile("rb") as answer:
            answer.read(struct.unpack(">i", answer.read(4))[0])
        count -= len(ends.select(0))
        grown = rss_mib(pid) - before
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count, grown


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    begin = time.perf_counter()
    with BrokerProcess() as broker:
        started = time.perf_counter() - begin
        bootstrap, pid = broker.bootstrap_servers, broker.pid
        idle = rss_mib(pid)
        report.extend(
            [
                Row(section=SECTION, work=START, value=started * 1e3, unit="ms", goal="<= 500 ms"),
                Row(section=SECTION, work=IDLE, value=idle, unit="MiB", goal="<= 80 MiB"),
            ]
        )  # fmt: skip
        cpu = cpu_seconds(pid)
        begin = time.perf_counter()
        produced = produce(bootstrap, seconds)
        share = (cpu_seconds(pid) - cpu) / (time.perf_counter() - begin)
        cpu = cpu_seconds(pid)
        begin = time.perf_counter()
        fetched = fetch(bootstrap, seconds)
        fetch_share = (cpu_seconds(pid) - cpu) / (time.perf_counter() - begin)
        busy = rss_mib(pid)
    with BrokerProcess() as broker:
        # One that has done nothing else: what was lent to produce and fetch is given back meanwhile.
        count, grown = idle_connections_mib(broker.bootstrap_servers, broker.pid)
    with mock_cluster() as mock:
        peer_produced = produce(mock, min(seconds, 2))
    mib = len(VALUE) / 2**20
    to_mock = f"{PRODUCE} to librdkafka's mock"
    report.extend(
        [
            Row(section=SECTION, work=PRODUCE, value=produced * mib, unit="MiB/s",
                ratio=produced / peer_produced, against=to_mock),
            Row(section=SECTION, work=to_mock, value=peer_produced * mib, unit="MiB/s",
                note="it keeps nothing on disk"),
            Row(section=SECTION, work="broker while it is produced to", value=share * 100,
                unit="% core", goal="<= 50 %"),
            Row(section=SECTION, work=FETCH, value=fetched * mib, unit="MiB/s"),
            Row(section=SECTION, work="broker while it is fetched from", value=fetch_share * 100,
                unit="% core", goal="<= 50 %"),
            Row(section=SECTION, work=BUSY, value=busy, unit="MiB"),
            Row(section=SECTION, work=f"memory for {count:,} idle connections", value=grown,
                unit="MiB", goal="<= 64 MiB"),
        ]
    )  # fmt: skip
    ours = Ours(started, produced, fetched, idle, busy)
    _beside_apache_kafka(report, ours, seconds)


class Ours(NamedTuple):
    """What the bundled broker reached, for the peer to be held against."""

    started: float
    produced: float
    fetched: float
    idle_mib: float
    busy_mib: float


def _beside_apache_kafka(report: Report, ours: Ours, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            kafka = ApacheKafka(Path(directory), kafka_jars(Path(directory)))
        except KafkaUnavailable as missing:
            report.notes.append(f"Apache Kafka left out: {missing}")
            return
        with kafka:
            idle = rss_mib(kafka.pid)
            produced = produce(kafka.bootstrap_servers, seconds)
            fetched = fetch(kafka.bootstrap_servers, seconds)
            busy = rss_mib(kafka.pid)
    mib = len(VALUE) / 2**20
    for work, value, theirs, unit, goal in (
        (START, ours.started * 1e3, kafka.seconds_to_ready * 1e3, "ms", ""),
        (IDLE, ours.idle_mib, idle, "MiB", ""),
        (PRODUCE, ours.produced * mib, produced * mib, "MiB/s", ">= 1x"),
        (FETCH, ours.fetched * mib, fetched * mib, "MiB/s", ">= 1x"),
        (BUSY, ours.busy_mib, busy, "MiB", ""),
    ):
        on_kafka = f"{work}, Apache Kafka"
        report.extend(
            [
                Row(section=SECTION, work=on_kafka, value=theirs, unit=unit,
                    note="it does not fsync" if work == PRODUCE else ""),
                Row(section=SECTION, work=work, value=value, unit=unit, ratio=value / theirs,
                    against=on_kafka, goal=goal),
            ]
        )  # fmt: skip
