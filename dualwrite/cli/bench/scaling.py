"""What a transaction costs as partitions, open transactions, ids and the log grow."""

import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.cli.bench.report import Report, Row
from dualwrite.cli.bench.transactions import TOPIC, Work, ours
from dualwrite.wire.codec import decode
from dualwrite.wire.frame import decode_response_header, encode_request
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages import response_class
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.records import build_batch

SECTION = "growth: one transaction, p50"
RECORD = bytes(1024)
INIT_VERSION, PRODUCE_VERSION = 6, 12
TURNS = 20
CONNECTIONS = 100
"""Requests under way at once. One producer per id would take hours for what is idle afterwards."""


def answers(bootstrap: str, requests: Iterable[Any], version: int) -> Iterator[Any]:
    """Send requests of one kind, one at a time on each of many connections."""
    host, _, port = bootstrap.rpartition(":")
    waiting = iter(requests)
    with ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection((host, int(port))))
            for _ in range(CONNECTIONS)
        ]
        readers = [stack.enter_context(link.makefile("rb")) for link in links]
        while sent := list(zip(links, readers, waiting, strict=False)):
            for link, _, request in sent:
                link.sendall(encode_request(request, version, 0, "bench"))
            for _, reader, request in sent:
                (size,) = struct.unpack(">i", reader.read(4))
                frame = reader.read(size)
                api_key = schema_of(type(request)).api_key
                _, offset = decode_response_header(frame, api_key, version)
                yield decode(response_class(api_key), frame, version, offset)


def partitions(bootstrap: str, count: int) -> None:
    """A topic with many partitions beside the one that is written."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(f"wide-{count}", count, 1)]).values():
        future.result(300)


def open_transactions(bootstrap: str, count: int) -> None:
    """Prepared transactions that nobody ends, each of its own id."""
    ids = [f"open-{count}-{number}" for number in range(count)]
    inits = (InitProducerIdRequest(transactional_id=i, enable_2pc=True) for i in ids)
    opened = list(answers(bootstrap, inits, INIT_VERSION))
    produces = (
        _produce(transactional_id, init.producer_id, init.producer_epoch)
        for transactional_id, init in zip(ids, opened, strict=True)
    )
    for answer in answers(bootstrap, produces, PRODUCE_VERSION):
        (topic,) = answer.responses
        if topic.partition_responses[0].error_code:
            raise RuntimeError(f"a transaction was not opened: {topic.partition_responses[0]}")


def _produce(transactional_id: str, producer_id: int, epoch: int) -> ProduceRequest:
    batch = build_batch(
        [(None, b"x", [], 0)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        is_transactional=True,
    )
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return ProduceRequest(transactional_id=transactional_id, acks=-1, topic_data=[topic])


def transactional_ids(bootstrap: str, count: int) -> None:
    """Ids that were used once and are idle now."""
    inits = (
        InitProducerIdRequest(
            transactional_id=f"idle-{count}-{number}", transaction_timeout_ms=60_000
        )
        for number in range(count)
    )
    for answer in answers(bootstrap, inits, INIT_VERSION):
        if answer.error_code:
            raise RuntimeError(f"an id was not made: {answer}")


def log_megabytes(bootstrap: str, count: int) -> None:
    """Records of 1 KiB already in the partition that is written."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for _ in range(count * 1024):
        while True:
            try:
                producer.produce(TOPIC, RECORD, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()


@dataclass(frozen=True, slots=True)
class Dimension:
    """Something that grows beside the transactions that are measured."""

    name: str
    grow: Callable[[str, int], None]
    """Adds that many on the broker with that address."""
    sizes: tuple[int, ...]


DIMENSIONS = (
    Dimension("idle partitions", partitions, (100, 1_000, 10_000)),
    Dimension("prepared transactions", open_transactions, (10, 1_000, 10_000)),
    Dimension("idle transactional ids", transactional_ids, (1_000, 10_000, 100_000)),
    Dimension("MiB in the log", log_megabytes, (10, 100, 1_000)),
)


def run(report: Report, seconds: float, dimensions: Sequence[Dimension] | None = None) -> None:
    for dimension in DIMENSIONS if dimensions is None else dimensions:
        _measure(report, dimension, seconds)


def _measure(report: Report, dimension: Dimension, seconds: float) -> None:
    """A broker that grows, beside a control that has all the same but what grows.

    What else the machine does from minute to minute meets both. Before anything has grown the two are
    equal: how far that ratio is from 1x is how far any of them may be by chance.
    """
    from dualwrite.broker import BrokerProcess

    with ExitStack() as stack:
        brokers = []
        for _ in range(2):
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            brokers.append(stack.enter_context(BrokerProcess(data_dir=directory)))
        works = []
        for broker in brokers:
            work, close = ours(broker.bootstrap_servers, "bench-growth")
            stack.callback(close)
            works.append(work)
        reached = 0
        for size in (0, *dimension.sizes):
            if size:
                dimension.grow(brokers[0].bootstrap_servers, size - reached)
                reached = size
            os.sync()  # what grew is measured, not the disk that still writes it
            grown, control = in_turns(works, seconds)
            report.add(
                Row(section=SECTION, work=f"{size:,} {dimension.name}", value=grown, unit="ms",
                    ratio=grown / control, against="a broker without",
                    goal="<= 1.3x" if size else "", note=f"without: {control:.3g} ms")
            )  # fmt: skip


def in_turns(works: Sequence[Work], seconds: float) -> list[float]:
    """The median milliseconds of each work. All take turns, so that noise meets each as much."""
    durations_s: list[list[float]] = [[] for _ in works]
    for turn in range(TURNS):
        pairs = list(zip(works, durations_s, strict=True))
        # Who comes first changes, too: what one leaves behind would always meet the same other.
        for work, mine in pairs if turn % 2 else reversed(pairs):
            work()
            stop = time.perf_counter() + seconds / TURNS / len(works)
            while True:
                start = time.perf_counter()
                work()
                mine.append(time.perf_counter() - start)
                if time.perf_counter() >= stop:
                    break
    return [statistics.median(mine) * 1e3 for mine in durations_s]
