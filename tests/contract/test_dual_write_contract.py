"""`DualWriter` and `AsyncDualWriter` from outside."""

import asyncio
import inspect
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text
from sqlalchemy.orm import Session

from dualwrite import (
    AsyncDualWriter,
    ConfigurationError,
    DualWriter,
    GroupMetadata,
    InvalidTxnState,
    KafkaError,
    Outcome,
    RetryableError,
    TransactionAdmin,
    TwoPhaseProducer,
)
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker
from dualwrite.pytest_plugin import read_topic

INSERT = text("INSERT INTO orders VALUES (:id)")


@pytest.fixture
def topic():
    return f"orders-{uuid.uuid4().hex}"


def rows(engine):
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(text("SELECT id FROM orders"))]


def keys(topic, servers):
    return [int(message.key()) for message in read_topic(topic, servers)]


@pytest.fixture
def writer(servers, engine):
    with DualWriter(
        {"bootstrap.servers": servers}, store=SqlStore(engine), app="orders", slots=1
    ) as dw:
        yield dw


@pytest.mark.parametrize("kind", [DualWriter, AsyncDualWriter])
def test_defaults(kind):
    """Eight slots, a lease of ten seconds, thirty seconds for a slot, Kafka waited for, any mode."""
    parameters = inspect.signature(kind).parameters
    wanted = {
        "slots": 8,
        "lease_seconds": 10,
        "kafka_commit": "wait",
        "slot_timeout": 30,
        "mode": "auto",
    }
    assert {name: parameters[name].default for name in wanted} == wanted
    assert {"store", "app", "instance"} <= set(parameters)


def test_one_block_is_one_transaction(writer, engine, servers, topic):
    """Session and messages commit together; the outcome names both sides, the pair and the slot."""
    with writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 1})
        tx.produce(topic, key=b"1", value=b"..")
    assert isinstance(tx.outcome, Outcome)
    assert (tx.outcome.database, tx.outcome.kafka) == ("committed", "committed")
    assert tx.outcome.slot == "orders-0"
    producer_id, epoch = tx.outcome.txn.split(":")
    assert int(producer_id) >= 0
    assert int(epoch) >= 0
    assert rows(engine) == keys(topic, servers) == [1]
    assert writer.mode == "2pc"


def test_connection_of_the_transaction(writer, engine, servers, topic):
    """The connection works as well as the session."""
    with writer.transaction() as tx:
        tx.connection.execute(INSERT, {"id": 1})
        tx.produce(topic, key=b"1")
    assert rows(engine) == keys(topic, servers) == [1]


@pytest.mark.parametrize("open_own", [Session, lambda engine: engine.connect()])
def test_own_session_or_connection(writer, engine, servers, topic, open_own):
    """The caller may bring a session or a connection."""
    with open_own(engine) as own, writer.transaction(own) as tx:
        own.execute(INSERT, {"id": 1})
        tx.produce(topic, key=b"1")
    assert rows(engine) == keys(topic, servers) == [1]


def test_exception_undoes_both_sides(writer, engine, servers, topic):
    """An exception in the block rolls back and leaves nothing to readers."""
    with pytest.raises(ZeroDivisionError), writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 1})
        tx.produce(topic, key=b"1")
        1 / 0  # noqa: B018
    with writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 2})
        tx.produce(topic, key=b"2")
    assert rows(engine) == keys(topic, servers) == [2]


@pytest.mark.parametrize(
    "given",
    [
        lambda topic: [TopicPartition(topic, 0, 1)],
        lambda topic: {(topic, 0): 1},
        lambda topic: {TopicPartition(topic, 0): 1},
        lambda topic: {TopicPartition(topic, 0): TopicPartition(topic, 0, 1)},
    ],
    ids=["list", "dict", "dict by TopicPartition", "dict of TopicPartitions"],
)
def test_offsets_go_with_the_transaction(writer, engine, servers, topic, given):
    """Consumed offsets commit with rows and messages, in every form that the producer takes."""
    with writer.transaction() as tx:
        tx.produce(topic, key=b"1")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    try:
        with writer.transaction() as tx:
            tx.session.execute(INSERT, {"id": 1})
            tx.send_offsets(given(topic), consumer.consumer_group_metadata())
        assert tx.outcome.kafka == "committed"
        assert consumer.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == 1
    finally:
        consumer.close()
    assert rows(engine) == [1]


@pytest.mark.parametrize("group", [b"junk", None])
def test_wrong_group_undoes_both_sides(writer, engine, topic, group):
    """Group metadata of an unknown form fails inside the block, before anything is sent."""
    with pytest.raises((ValueError, TypeError)), writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 1})
        tx.send_offsets([TopicPartition(topic, 0, 1)], group)
    assert rows(engine) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ""},
        {"partition": "0"},
        {"partition": -2},
        {"timestamp": 1.5},
        {"timestamp": 2**70},
        {"headers": 5},
        {"on_delivery": 5},
        {"value": 5},
    ],
    ids=str,
)
def test_wrong_record_fails_where_it_is_given(writer, engine, servers, topic, wrong):
    """`tx.produce` itself refuses what cannot be sent, not the end of the block."""
    with writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 1})
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong)).removesuffix("s")):
            tx.produce(**{"topic": topic, "value": b"v", **wrong})
        tx.produce(topic, key=b"1")
    assert tx.outcome.kafka == "committed"
    assert rows(engine) == keys(topic, servers) == [1]


@pytest.mark.parametrize(
    ("offsets", "group", "reason"),
    [
        (lambda topic: [TopicPartition(topic, 0, 1)], "", "INVALID_GROUP_ID"),
        (
            lambda topic: [TopicPartition(topic, 0, 1, "x" * 5000)],
            "g",
            "OFFSET_METADATA_TOO_LARGE",
        ),
    ],
    ids=["no group", "metadata"],
)
def test_offsets_that_would_never_be_taken_are_not_retryable(
    writer, engine, topic, offsets, group, reason
):
    """Running the block again would get the same answer."""
    with writer.transaction() as tx:
        tx.produce(topic, key=b"1")
    with pytest.raises(KafkaError, match=reason), writer.transaction() as tx:
        tx.session.execute(INSERT, {"id": 1})
        tx.send_offsets(offsets(topic), GroupMetadata(group))
    assert rows(engine) == []


def test_background_returns_at_the_decision(servers, engine, topic):
    """With kafka_commit="background" the block ends at the decision; closing waits for Kafka."""
    config = {"bootstrap.servers": servers}
    with DualWriter(
        config, store=SqlStore(engine), app="orders", slots=1, kafka_commit="background"
    ) as dw:
        with dw.transaction() as tx:
            tx.session.execute(INSERT, {"id": 1})
            tx.produce(topic, key=b"1")
        assert tx.outcome.kafka in ("pending", "committed")
    assert rows(engine) == keys(topic, servers) == [1]


def test_no_free_slot_is_retryable(servers, engine):
    """Whoever waits for a slot longer than slot_timeout may run the block again."""
    config = {"bootstrap.servers": servers}
    with DualWriter(config, store=SqlStore(engine), app="orders", slots=1, slot_timeout=0.1) as dw:
        first = dw.begin()
        with pytest.raises(RetryableError):
            dw.begin()
        first.rollback()


def test_opening_recovers_what_was_decided(servers, url, engine, topic):
    """A transaction that the database has committed is committed in Kafka on opening, others not."""
    store = SqlStore(engine)
    for number, is_decided in ((0, True), (1, False)):
        name = f"orders-{number}"
        claim = store.claim(name)
        producer = TwoPhaseProducer(
            {
                "bootstrap.servers": servers,
                "transactional.id": name,
                "transaction.two.phase.commit.enable": True,
            }
        )
        with producer:
            producer.init_transactions(keep_prepared_txn=True)
            producer.begin_transaction()
            producer.produce(topic, key=str(number))
            state = producer.prepare_transaction()
        if is_decided:
            with engine.begin() as connection:
                connection.execute(INSERT, {"id": number})
                store.remember(connection, name, state, claim.fence)
    with DualWriter({"bootstrap.servers": servers}, store=store, app="orders", slots=1):
        assert rows(engine) == keys(topic, servers) == [0]
        with TransactionAdmin({"bootstrap.servers": servers}) as admin:
            assert admin.list_transactions(["Ongoing"], id_pattern="orders-[0-9]+") == []


@pytest.mark.parametrize("app", ["", "a.b", "a b", "ä", "x" * 101])
def test_names_of_apps(engine, app):
    """An app's name has 1 to 100 letters, digits, underscores and hyphens."""
    with pytest.raises(ConfigurationError):
        DualWriter({"bootstrap.servers": "h:1"}, store=SqlStore(engine), app=app)


@pytest.mark.parametrize("kind", [DualWriter, AsyncDualWriter])
@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka_commit": "never"},
        {"mode": "3pc"},
        {"slots": 0},
        {"lease_seconds": -1},
        {"slot_timeout": -1},
        {"instance": "a/b"},
        {"app": None},
        {"store": None},
        {"store": "sqlite://"},
        {"config": {"bootstrap.servers": "h:1", "linger": 5}},
        {"config": {}},
        {"slots": "8"},
        {"slots": True},
        {"lease_seconds": "10"},
        {"lease_seconds": None},
        {"slot_timeout": None},
        {"slot_timeout": float("inf")},
        {"instance": 3},
        {"config": None},
        {"config": "h:1"},
        {"config": {"bootstrap.servers": "h:1", "transaction.timeout.ms": "x"}, "mode": "resume"},
        {"config": {"bootstrap.servers": "h:1", "transaction.timeout.ms": None}, "mode": "resume"},
        {"store": SqlStore},
    ],
    ids=str,
)
def test_wrong_arguments(engine, kind, wrong):
    """Arguments out of range are a configuration error at once."""
    right = {"config": {"bootstrap.servers": "h:1"}, "store": SqlStore(engine), "app": "a"}
    kind(**right)
    with pytest.raises(ConfigurationError):
        kind(**right | wrong)


@pytest.mark.parametrize("kind", [DualWriter, AsyncDualWriter])
@pytest.mark.parametrize("instance", [None, "", "pod-3"])
def test_instance_is_optional(engine, kind, instance):
    """None is no name: what an environment variable gives that is not set."""
    kind({"bootstrap.servers": "h:1"}, store=SqlStore(engine), app="a", instance=instance)


def test_broker_with_two_phase_commit_switched_off_is_an_error(engine):
    """Nobody falls back silently where the broker could but may not; the error names the switch."""
    with Broker(transaction_two_phase_commit_enable=False) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        dw = DualWriter(config, store=SqlStore(engine), app="orders", slots=1)
        with pytest.raises(ConfigurationError, match=r"transaction\.two\.phase\.commit\.enable"):
            dw.open()


def test_one_patience_for_all_that_is_asked_of_kafka(engine):
    """Opening gives up on a cluster that is away as soon as a write would."""
    config = {"bootstrap.servers": "127.0.0.1:1"}
    settings = DualWriter(config, store=SqlStore(engine), app="a").settings
    asked = settings.producer_config("a-0", two_phase=True)["max.block.ms"]
    assert settings.admin_config["max.block.ms"] == asked
    config["max.block.ms"] = 300
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1"):
        DualWriter(config, store=SqlStore(engine), app="a").open()


def test_closed_writer_is_refused(engine):
    """A writer is used inside its `with` block only."""
    dw = DualWriter({"bootstrap.servers": "h:1"}, store=SqlStore(engine), app="a")
    with pytest.raises(InvalidTxnState), dw.transaction():
        pass


def test_asynchronous_writer(servers, url, engine, topic):
    """The same, awaited."""

    async def write():
        store = SqlStore(url.replace("sqlite:", "sqlite+aiosqlite:"))
        config = {"bootstrap.servers": servers}
        async with AsyncDualWriter(config, store=store, app="orders", slots=1) as dw:
            async with dw.transaction() as tx:
                await tx.session.execute(INSERT, {"id": 1})
                tx.produce(topic, key=b"1")
        await store.aio().close()
        return tx.outcome

    assert asyncio.run(write()).kafka == "committed"
    assert rows(engine) == keys(topic, servers) == [1]
