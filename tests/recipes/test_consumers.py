"""Consumers that act once: positions in the database, offsets in the transaction, seen ids."""

import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from dualwrite import ConfigurationError, Fenced
from dualwrite.recipes import consume_transform_produce
from dualwrite.recipes.consume_to_db import DatabaseConsumer, Positions
from dualwrite.recipes.idempotent_consumer import SeenMessages
from tests.dualwrite.world import unique


@pytest.fixture
def source(world):
    """A topic with the orders 0 to 9."""
    topic = unique("source")
    with world.writer() as dw, dw.transaction() as tx:
        for number in range(10):
            tx.produce(topic, key=str(number), value=b"x", partition=0)
    return topic


def insert(world, session, number):
    session.execute(text(f"INSERT INTO {world.orders} VALUES ({number}, 'x')"))


def position_table():
    return "position_" + uuid.uuid4().hex[:8]


def test_consume_to_database_survives_failures_at_any_message(world, source):
    config = {"bootstrap.servers": world.bootstrap, "group.id": source}
    table = position_table()
    failures = [3, 7]
    done = threading.Event()

    def handle(session, message):
        number = int(message.key())
        insert(world, session, number)
        if number in failures:
            failures.remove(number)
            raise ZeroDivisionError
        if number == 9:
            done.set()

    while not done.is_set():
        with DatabaseConsumer(config, world.engine, [source], table=table, create=True) as consumer:
            try:
                consumer.run(handle, stop=done, batch_size=2)
            except ZeroDivisionError:
                continue

    assert world.rows() == list(range(10))
    assert failures == []


def test_consumer_goes_on_from_the_database_after_a_failure_without_a_restart(world, source):
    config = {"bootstrap.servers": world.bootstrap, "group.id": source}
    failures = [0, 5]
    done = threading.Event()

    def handle(session, message):
        number = int(message.key())
        insert(world, session, number)
        if number in failures:
            failures.remove(number)
            raise ZeroDivisionError
        if number == 9:
            done.set()

    with DatabaseConsumer(
        config, world.engine, [source], table=position_table(), create=True
    ) as consumer:
        while not done.is_set():
            try:
                consumer.run_once(handle, 3)
            except ZeroDivisionError:
                done.clear()

    assert world.rows() == list(range(10))


def test_paused_consumer_that_lost_its_partition_writes_nothing(world):
    positions = Positions(world.engine, "group", position_table())
    positions.create()
    zombie, _ = positions.claim(("t", 0))
    owner, start = positions.claim(("t", 0))
    assert start == -1

    with Session(world.engine) as session, session.begin():
        positions.advance(session, ("t", 0), 5, owner)
    with pytest.raises(Fenced), Session(world.engine) as session, session.begin():
        insert(world, session, 1)
        positions.advance(session, ("t", 0), 3, zombie)

    assert world.rows() == []
    assert positions.claim(("t", 0)) == (owner + 1, 5)


def test_group_id_is_needed(world):
    with pytest.raises(ConfigurationError):
        DatabaseConsumer({"bootstrap.servers": world.bootstrap}, world.engine, ["t"])


def test_transform_failures_are_read_again_and_everything_happens_once(world, source):
    consumer = Consumer(
        consume_transform_produce.consumer_config(
            {
                "bootstrap.servers": world.bootstrap,
                "group.id": source,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
    )
    consumer.subscribe([source])
    failures = [2, 6]
    stop = threading.Event()

    def transform(tx, message):
        number = int(message.key())
        if number in failures:
            failures.remove(number)
            raise Fenced("as if another instance had the slot")
        world.order(tx, number)
        if number == 9:
            stop.set()

    with world.writer() as dw:
        consume_transform_produce.run(consumer, dw, transform, stop=stop, batch_size=4)
    committed = consumer.committed([TopicPartition(source, 0)], timeout=20)
    consumer.close()

    assert failures == []
    world.assert_agree(range(10))
    assert committed[0].offset == 10


def test_message_is_acted_upon_once(world):
    seen = SeenMessages(world.engine, "seen_" + uuid.uuid4().hex[:8], create=True)

    def act(message_id, *, fail=False):
        with Session(world.engine) as session, session.begin():
            if not seen.first_time(session, "me", message_id):
                return False
            insert(world, session, int(message_id))
            if fail:
                raise ZeroDivisionError
            return True

    with pytest.raises(ZeroDivisionError):
        act("1", fail=True)
    assert act("1")
    assert not act("1")
    with Session(world.engine) as session, session.begin():
        assert seen.has_seen(session, "me", "1")
        assert not seen.has_seen(session, "other", "1")
        later = datetime.now(UTC) + timedelta(days=1)
        assert seen.forget_before(session, later) == 1
    assert world.rows() == [1]


@pytest.mark.parametrize("step", ["transforming", "flushed", "committed"])
def test_interrupted_batch_is_neither_skipped_nor_done_again(world, source, step):
    """Ctrl-C, and the same consumer goes on."""

    def interrupt_once(name):
        if name == step and armed:
            armed.clear()
            raise KeyboardInterrupt

    def transform(tx, message):
        interrupt_once("transforming")
        world.order(tx, int(message.key()))
        if int(message.key()) == 9:
            stop.set()

    armed, stop = [], threading.Event()
    config = {"bootstrap.servers": world.bootstrap, "group.id": source}
    consumer = Consumer(
        consume_transform_produce.consumer_config(config | {"auto.offset.reset": "earliest"})
    )
    consumer.subscribe([source])
    with world.writer(on_step=interrupt_once) as dw:
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            consume_transform_produce.run(consumer, dw, transform, stop=stop, batch_size=4)
        consume_transform_produce.run(consumer, dw, transform, stop=stop, batch_size=4)
    consumer.close()

    world.assert_agree(range(10))


def test_mysql_tells_names_apart_that_differ_in_case_only(mysql_url):
    """Its collations would take one message for another, which would then never be acted upon."""
    engine = create_engine(mysql_url)
    positions = Positions(engine, "group", position_table())
    positions.create()
    assert [positions.claim((topic, 0))[0] for topic in ("orders", "Orders", "orders ")] == [
        1,
        1,
        1,
    ]
    seen = SeenMessages(engine, "seen_" + uuid.uuid4().hex[:8], create=True)
    with Session(engine) as session, session.begin():
        assert all(seen.first_time(session, "c", name) for name in ("id-a", "ID-A", "id-a "))
        assert not seen.first_time(session, "c", "id-a")
        assert seen.has_seen(session, "c", "ID-A")
        for consumer, name in (("c", "é" * 101), ("é" * 51, "id"), ("", "id")):
            with pytest.raises(ConfigurationError):
                seen.first_time(session, consumer, name)
    engine.dispose()
