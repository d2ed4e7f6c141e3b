"""Transactions per second: ours durable, beside the disk's floor and confluent-kafka's client."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka import Producer

from dualwrite import AsyncTwoPhaseProducer, TwoPhaseProducer
from dualwrite.cli.bench.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_jars
from dualwrite.cli.bench.brokers import mock_cluster
from dualwrite.cli.bench.floor import fdatasync_p50_ms
from dualwrite.cli.bench.report import Latencies, Report, Row, summarize

VALUE = bytes(100)
TOPIC = "bench-transactions"
SECTION = "transactions (Produce + EndTxn, durable)"

Work = Callable[[], None]
Settings = Mapping[str, Any]


def timed(work: Work, seconds: float) -> Latencies:
    """Do `work` again and again for a while, after one that is not counted."""
    work()
    durations = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        work()
        durations.append(time.perf_counter() - start)
    return summarize(durations, time.perf_counter() - begin)


def timed_in_threads(works: list[Work], seconds: float) -> Latencies:
    """The same with one thread per work, all at once."""
    durations: list[list[float]] = [[] for _ in works]
    ready = threading.Barrier(len(works) + 1)

    def loop(work: Work, mine: list[float]) -> None:
        work()
        ready.wait()
        stop = time.perf_counter() + seconds
        while (start := time.perf_counter()) < stop:
            work()
            mine.append(time.perf_counter() - start)

    threads = [
        threading.Thread(target=loop, args=(work, mine))
        for work, mine in zip(works, durations, strict=True)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return summarize([d for mine in durations for d in mine], time.perf_counter() - begin)


def config_of(bootstrap: str, transactional_id: str, more: Settings | None) -> dict[str, Any]:
    own = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    return {**(more or {}), **own}


def ours(
    bootstrap: str, transactional_id: str, more: Settings | None = None
) -> tuple[Work, Callable[[], None]]:
    """One transaction of our producer, and how to close it."""
    producer = TwoPhaseProducer(config_of(bootstrap, transactional_id, more))
    producer.init_transactions()

    def transaction() -> None:
        producer.begin_transaction()
        producer.produce(TOPIC, VALUE, partition=0)
        producer.commit_transaction()

    return transaction, producer.close


def confluent(bootstrap: str, transactional_id: str) -> Work:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    producer.init_transactions()

    def transaction() -> None:
        producer.begin_transaction()
        producer.produce(TOPIC, VALUE, partition=0)
        producer.commit_transaction()

    return transaction


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    with tempfile.TemporaryDirectory() as directory:
        floor = fdatasync_p50_ms(Path(directory), min(seconds, 2))
    with BrokerProcess() as broker:
        bootstrap = broker.bootstrap_servers
        work, close = ours(bootstrap, "bench-one")
        one = timed(work, seconds)
        close()
        peer = timed(confluent(bootstrap, "bench-peer"), seconds)
        eight = _many(bootstrap, 8, seconds)
        sixteen = _many(bootstrap, 16, seconds)
    with mock_cluster() as mock:
        in_memory = timed(confluent(mock, "bench-mock"), seconds)
    section = SECTION
    report.extend(
        [
            Row(
                section=section, work="1 producer of ours, p50", value=one.p50, unit="ms",
                ratio=one.p50 / floor, against="fdatasync p50", goal="<= 4x",
                note=f"fdatasync p50: {floor:.3g} ms",
            ),
            Row(section=section, work="1 producer of ours, p99", value=one.p99, unit="ms"),
            Row(
                section=section, work="1 producer of ours", value=one.per_second, unit="txn/s",
                ratio=one.per_second / peer.per_second, against="1 confluent-kafka",
            ),
            Row(
                section=section, work="1 confluent-kafka", value=peer.per_second, unit="txn/s",
                ratio=peer.per_second / in_memory.per_second,
                against="1 confluent-kafka on librdkafka's mock",
            ),
            Row(
                section=section, work="1 confluent-kafka on librdkafka's mock",
                value=in_memory.per_second, unit="txn/s", note="it keeps nothing on disk",
            ),
            Row(section=section, work="1 confluent-kafka, p50", value=peer.p50, unit="ms"),
            Row(section=section, work="8 producers of ours", value=eight.per_second, unit="txn/s"),
            Row(section=section, work="8 producers of ours, p99", value=eight.p99, unit="ms"),
            Row(
                section=section, work="16 producers of ours", value=sixteen.per_second, unit="txn/s",
                goal=">= 6,000 txn/s", note="one event loop",
            ),
        ]
    )  # fmt: skip
    _beside_apache_kafka(report, section, sixteen, seconds)


def on_cluster(report: Report, config: Settings, seconds: float) -> None:
    """The same producers on a cluster that runs already; nothing is known of its disks."""
    bootstrap = config["bootstrap.servers"]
    work, close = ours(bootstrap, "bench-one", config)
    one = timed(work, seconds)
    close()
    sixteen = _many(bootstrap, 16, seconds, config)
    section = f"transactions on {bootstrap}"
    for name, figure, unit in (
        ("1 producer of ours, p50", one.p50, "ms"),
        ("1 producer of ours, p99", one.p99, "ms"),
        ("1 producer of ours", one.per_second, "txn/s"),
        ("16 producers of ours", sixteen.per_second, "txn/s"),
    ):
        report.add(Row(section=section, work=name, value=figure, unit=unit))


def _beside_apache_kafka(report: Report, section: str, ours: Latencies, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            kafka = ApacheKafka(Path(directory), kafka_jars(Path(directory)))
        except KafkaUnavailable as missing:
            report.notes.append(f"Apache Kafka left out: {missing}")
            return
        with kafka:
            theirs = _many(kafka.bootstrap_servers, 16, seconds)
    work = "16 producers of ours"
    on_kafka = f"{work} on Apache Kafka"
    report.extend(
        [
            Row(
                section=section, work=on_kafka, value=theirs.per_second, unit="txn/s",
                note="it does not fsync",
            ),
            Row(
                section=section, work=work, value=ours.per_second, unit="txn/s",
                ratio=ours.per_second / theirs.per_second, against=on_kafka, goal=">= 2x",
            ),
        ]
    )  # fmt: skip


def _many(bootstrap: str, count: int, seconds: float, more: Settings | None = None) -> Latencies:
    """Producers on one event loop: threads would measure the interpreter's lock instead."""
    ids = [f"bench-{count}-{number}" for number in range(count)]
    return uvloop.run(_all_at_once([config_of(bootstrap, name, more) for name in ids], seconds))


async def _all_at_once(configs: list[dict[str, Any]], seconds: float) -> Latencies:
    producers = [AsyncTwoPhaseProducer(config) for config in configs]
    durations: list[float] = []

    async def transact(producer: AsyncTwoPhaseProducer) -> None:
        await producer.begin_transaction()
        await producer.produce(TOPIC, VALUE, partition=0)
        await producer.commit_transaction()

    async def loop(producer: AsyncTwoPhaseProducer, stop: float) -> None:
        while (start := time.perf_counter()) < stop:
            await transact(producer)
            durations.append(time.perf_counter() - start)

    for producer in producers:
        await producer.init_transactions()
        await transact(producer)
    begin = time.perf_counter()
    await asyncio.gather(*(loop(producer, begin + seconds) for producer in producers))
    elapsed = time.perf_counter() - begin
    for producer in producers:
        await producer.close()
    return summarize(durations, elapsed)
