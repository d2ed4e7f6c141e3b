"""A real Apache Kafka, from its released jars: the same codes, our producer on it, and resume mode.

It answers keepPreparedTxn with an error, so a dual writer falls back to resume mode by itself and says
so. The writer here is a process that is killed with SIGKILL, and what it left is recovered.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from dualwrite import DualWriter, TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.cli.bench.apache_kafka import ApacheKafka, KafkaUnavailable, kafka_jars
from dualwrite.failures import UnsupportedByBroker
from tests.dualwrite.world import read_committed

ROOT = Path(__file__).parents[2]
TOPIC = "kafka-orders"

pytestmark = pytest.mark.slow

WRITER = """
import os, signal, sys
import sqlalchemy as sa
from dualwrite import DualWriter
from dualwrite.adapters.sql import SqlStore
bootstrap, url, number, point, app = sys.argv[1:]
def on_step(name):
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)
engine = sa.create_engine(url)
config = {"bootstrap.servers": bootstrap}
writer = DualWriter(config, store=SqlStore(engine), app=app, slots=1, on_step=on_step)
with writer as dw:
    with dw.transaction() as tx:
        tx.connection.execute(sa.text("INSERT INTO orders VALUES (:n)"), {"n": int(number)})
        tx.produce("kafka-orders", key=number.encode(), value=b"x", partition=0)
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kafka")
    try:
        server = ApacheKafka(directory, kafka_jars(directory), transaction_max_timeout_ms="900000")
    except KafkaUnavailable as missing:
        pytest.skip(str(missing))
    with server:
        _create_internal_topics(server.bootstrap_servers)
        yield server.bootstrap_servers


def _create_internal_topics(bootstrap):
    """Kafka makes them on first use, and answers with errors meanwhile."""
    producer = TwoPhaseProducer({"bootstrap.servers": bootstrap, "transactional.id": "first"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(TOPIC, b"first", key=b"first", partition=0)
    producer.abort_transaction()
    producer.close()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "first", "log_level": 0})
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
            break
        except KafkaException:
            assert time.monotonic() < deadline
    consumer.close()


@pytest.fixture
def database(tmp_path):
    url = f"sqlite:///{tmp_path}/orders.db"
    engine = sa.create_engine(url)
    SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    yield url
    engine.dispose()


def rows(url):
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = {str(row.id) for row in connection.execute(sa.text("SELECT id FROM orders"))}
    engine.dispose()
    return found


def records(kafka):
    return [key.decode() for key, _ in read_committed(kafka, TOPIC)]


def test_it_gives_the_same_codes_as_the_bundled_broker(kafka):
    """The conformance suite, less what no other broker has (KIP-939)."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "tests/conformance/test_error_codes.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "DUALWRITE_CONFORMANCE_BOOTSTRAP": kafka},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-3000:]


def test_our_producer_commits_and_aborts_there(kafka):
    producer = TwoPhaseProducer({"bootstrap.servers": kafka, "transactional.id": "ours"})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.produce("kafka-ours", str(number).encode(), partition=0)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()

    assert [value for _, value in read_committed(kafka, "kafka-ours")] == [b"0", b"2", b"4"]


def test_two_phase_commit_is_refused_with_a_clear_error(kafka):
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": kafka,
            "transactional.id": "two-phase",
            "transaction.two.phase.commit.enable": True,
        }
    )
    with pytest.raises(UnsupportedByBroker):
        producer.init_transactions(keep_prepared_txn=True)
    producer.close()


@pytest.mark.parametrize(
    ("point", "is_there"),
    [("flushed", False), ("produced", False), ("remembered", False), ("committed", True)],
)
def test_killed_writer_is_recovered_in_resume_mode(kafka, database, point, is_there):
    number = str(abs(hash((point, database))) % 1_000_000)
    app = f"app-{number}"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, kafka, database, number, point, app],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -9, done.stderr[-2000:]

    engine = sa.create_engine(database)
    with DualWriter({"bootstrap.servers": kafka}, store=SqlStore(engine), app=app, slots=1) as dw:
        assert dw.mode == "resume"
        with dw.transaction() as tx:
            tx.connection.execute(sa.text("INSERT INTO orders VALUES (0)"))
            tx.produce(TOPIC, key=f"next-{number}".encode(), value=b"y", partition=0)
    engine.dispose()

    assert (number in rows(database)) is is_there
    assert records(kafka).count(number) == int(is_there)
    assert records(kafka).count(f"next-{number}") == 1
