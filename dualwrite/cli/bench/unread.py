"""What consumers cost that ask for much and do not read: memory, and the time of others."""

import socket
from contextlib import ExitStack

from confluent_kafka import Producer

from dualwrite.cli.bench.brokers import rss_mib
from dualwrite.cli.bench.report import Report, Row
from dualwrite.cli.bench.transactions import ours, timed
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

SECTION = "beside consumers that do not read"
ALONE = "a transaction alone, p99"
TOPIC = "bench-unread"
FETCH_VERSION = 12
ANSWER_MIB, CONSUMERS, REQUESTS = 16, 40, 4


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    with BrokerProcess() as broker, ExitStack() as links:
        bootstrap = broker.bootstrap_servers
        _fill(bootstrap)
        work, close = ours(bootstrap, "bench-unread")
        alone = timed(work, seconds)
        before = rss_mib(broker.pid)
        _ask(bootstrap, links)
        beside = timed(work, seconds)
        grown = rss_mib(broker.pid) - before
        close()
    asked = ANSWER_MIB * CONSUMERS * REQUESTS
    report.extend(
        [
            Row(section=SECTION, work=f"memory for {CONSUMERS} such consumers", value=grown, unit="MiB",
                ratio=grown / asked, against=f"{asked:,} MiB that they asked for"),
            Row(section=SECTION, work=ALONE, value=alone.p99, unit="ms"),
            Row(section=SECTION, work="a transaction beside them, p99", value=beside.p99, unit="ms",
                ratio=beside.p99 / alone.p99, against=ALONE, goal="<= 3x"),
        ]
    )  # fmt: skip


def _fill(bootstrap: str) -> None:
    filler = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for _ in range(ANSWER_MIB * 64):
        filler.produce(TOPIC, bytes(2**14), partition=0)
        filler.poll(0)
    filler.flush()


def _ask(bootstrap: str, links: ExitStack) -> None:
    size = ANSWER_MIB * 2**20
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    topic = FetchTopic(topic=TOPIC, partitions=[part])
    request = FetchRequest(max_bytes=size, topics=[topic], max_wait_ms=0)
    host, _, port = bootstrap.rpartition(":")
    for _ in range(CONSUMERS):
        link = links.enter_context(socket.create_connection((host, int(port))))
        for number in range(REQUESTS):
            link.sendall(encode_request(request, FETCH_VERSION, number, "bench"))
