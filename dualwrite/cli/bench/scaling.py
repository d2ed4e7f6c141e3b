"""What a transaction costs as partitions, open transactions, ids and the log grow."""

import tempfile
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from dualwrite.cli.bench.report import Report, Row
from dualwrite.cli.bench.transactions import TOPIC, ours, timed

SECTION = "growth: one transaction, p50"


def partitions(bootstrap: str, count: int) -> None:
    """A topic with many partitions beside the one that is written."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(f"wide-{count}", count, 1)]).values():
        future.result(60)


def open_transactions(bootstrap: str, count: int) -> None:
    """Prepared transactions that nobody ends, each of its own id."""
    for number in range(count):
        producer = TwoPhaseProducer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"open-{count}-{number}",
                "transaction.two.phase.commit.enable": True,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(keep_prepared_txn=True)
        producer.begin_transaction()
        producer.produce("bench-open", b"x", partition=0)
        producer.prepare_transaction()
        producer.close()


def transactional_ids(bootstrap: str, count: int) -> None:
    """Ids that were used once and are idle now."""
    for number in range(count):
        producer = TwoPhaseProducer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"idle-{count}-{number}"}
        )
        producer.init_transactions()
        producer.close()


def log_records(bootstrap: str, count: int) -> None:
    """Records of 1 KiB already in the partition that is written."""
    producer = TwoPhaseProducer({"bootstrap.servers": bootstrap, "transactional.id": "filler"})
    producer.init_transactions()
    for start in range(0, count, 10_000):
        producer.begin_transaction()
        for _ in range(min(10_000, count - start)):
            producer.produce(TOPIC, bytes(1024), partition=0)
        producer.commit_transaction()
    producer.close()


DIMENSIONS: tuple[tuple[str, Callable[[str, int], None], tuple[int, ...]], ...] = (
    ("partitions", partitions, (100, 1_000, 10_000)),
    ("open prepared transactions", open_transactions, (10, 100, 1_000)),
    ("idle transactional ids", transactional_ids, (10, 100, 1_000)),
    ("1 KiB records in the log", log_records, (1_000, 10_000, 100_000)),
)


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    for name, grow, sizes in DIMENSIONS:
        with (
            tempfile.TemporaryDirectory() as directory,
            BrokerProcess(data_dir=directory) as broker,
        ):
            work, close = ours(broker.bootstrap_servers, "bench-growth")
            base = timed(work, seconds / 2).p50
            report.add(Row(section=SECTION, work=f"no {name}", value=base, unit="ms"))
            for size in sizes:
                grow(broker.bootstrap_servers, size)
                p50 = timed(work, seconds / 2).p50
                report.add(
                    Row(section=SECTION, work=f"{size:,} {name}", value=p50, unit="ms",
                        ratio=p50 / base, against="none", goal="<= 1.3x")
                )  # fmt: skip
            close()
