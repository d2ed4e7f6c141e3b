"""A database, a broker and writers between them, for tests."""

import json
import uuid
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine, text

from dualwrite.adapters.sql import SqlStore
from dualwrite.async_dual_writer import AsyncDualWriter
from dualwrite.dual_writer import DualWriter


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def read_committed(bootstrap, topic, isolation="read_committed"):
    """Every visible record of a topic as (key, value), partition by partition, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told by an empty answer
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        topics = consumer.list_topics(topic, timeout=20).topics
        partitions = sorted(topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found = {number: [] for number in partitions}
        at_end = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(20)
            assert message is not None, "the topic could not be read to its end"
            error = message.error()
            if error is None:
                found[message.partition()].append((message.key(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return []
    finally:
        consumer.close()
    return [record for number in partitions for record in found[number]]


def topics(bootstrap):
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics)


class World:
    """One SQL database with a table `orders(id, note)`, and a topic of its own."""

    def __init__(self, bootstrap, url):
        self.bootstrap = bootstrap
        self.url = url
        self.app = unique("app")
        self.topic = unique("orders")
        self.state_table = "state_" + uuid.uuid4().hex[:8]
        self.orders = "orders_" + uuid.uuid4().hex[:8]
        self.engine = create_engine(url)
        self.store = SqlStore(self.engine, table=self.state_table, create=True, lock_timeout=2)
        with self.engine.begin() as connection:
            connection.execute(
                text(f"CREATE TABLE {self.orders} (id INTEGER PRIMARY KEY, note VARCHAR(100))")
            )

    def writer(self, **options):
        options = {"slots": 2, "lease_seconds": 5, "app": self.app, "store": self.store} | options
        config = {"bootstrap.servers": self.bootstrap, **options.pop("config", {})}
        return DualWriter(config, **options)

    def async_writer(self, **options):
        store = SqlStore(self.url, table=self.state_table, lock_timeout=2)
        options = {"slots": 2, "lease_seconds": 5, "app": self.app, "store": store} | options
        config = {"bootstrap.servers": self.bootstrap, **options.pop("config", {})}
        return AsyncDualWriter(config, **options)

    async def async_order(self, tx, number, note="new"):
        await tx.session.execute(
            text(f"INSERT INTO {self.orders} VALUES (:id, :note)"), {"id": number, "note": note}
        )
        tx.produce(self.topic, key=str(number), value=json.dumps({"id": number}))

    def order(self, tx, number, note="new"):
        """Write one order to both sides."""
        tx.session.execute(
            text(f"INSERT INTO {self.orders} VALUES (:id, :note)"), {"id": number, "note": note}
        )
        tx.produce(self.topic, key=str(number), value=json.dumps({"id": number}))

    def backup(self):
        """The contents of the state table and the orders."""
        with self.engine.connect() as connection:
            return {
                table: [
                    dict(row)
                    for row in connection.execute(text(f"SELECT * FROM {table}")).mappings()
                ]
                for table in (self.state_table, self.orders)
            }

    def restore(self, backup):
        with self.engine.begin() as connection:
            for table, rows in backup.items():
                connection.execute(text(f"DELETE FROM {table}"))
                for row in rows:
                    names = ", ".join(row)
                    values = ", ".join(f":{name}" for name in row)
                    connection.execute(
                        text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row
                    )

    def rows(self):
        with self.engine.connect() as connection:
            return [row[0] for row in connection.execute(self._select())]

    def _select(self):
        return text(f"SELECT id FROM {self.orders} ORDER BY id")

    def records(self, isolation="read_committed"):
        found = read_committed(self.bootstrap, self.topic, isolation)
        return sorted(int(key) for key, _ in found)

    def assert_agree(self, expected):
        assert self.rows() == sorted(expected)
        assert self.records() == sorted(expected)

    def assert_agree_on_nothing(self):
        assert self.rows() == []
        assert self.topic not in topics(self.bootstrap) or self.records() == []

    def close(self):
        self.engine.dispose()


@contextmanager
def world(bootstrap, url):
    made = World(bootstrap, url)
    try:
        yield made
    finally:
        made.close()
