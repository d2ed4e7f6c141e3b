"""Looking at Kafka from outside: what a reader of committed records sees, and what is open."""

import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from dualwrite import TransactionAdmin


def create_topic(servers, topic, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result()


def alter_topic(servers, topic, **config):
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result()


def fill(servers, topic, values, partitions=None):
    producer = Producer({"bootstrap.servers": servers})
    for number, value in enumerate(values):
        where = {} if partitions is None else {"partition": number % partitions}
        producer.produce(topic, value=str(value).encode(), key=str(value).encode(), **where)
    assert producer.flush(30) == 0


def _assigned(servers, topic):
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "outside",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told by an empty answer
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    found = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in found])
    return consumer, len(found)


def committed(servers, topic):
    """Every committed record, up to the last stable offset of each partition."""
    consumer, partitions = _assigned(servers, topic)
    found, ended = [], set()
    deadline = time.monotonic() + 60
    try:
        while len(ended) < partitions and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not message.error().retriable():
                raise KafkaException(message.error())
    finally:
        consumer.close()
    assert len(ended) == partitions
    return found


def values(servers, topic):
    return sorted(int(message.value()) for message in committed(servers, topic))


def open_ids(servers, sink):
    """Everything of the sink that is open, its coordinator's transaction included."""
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        found = admin.list_transactions(states=["Ongoing"], id_pattern=rf"^spark\.{sink}\..*$")
    return sorted(t.transactional_id for t in found)


def slot_ids(servers, sink):
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        found = admin.list_transactions(id_pattern=rf"^spark\.{sink}\.[0-9]+\.[0-9]+$")
    return sorted(t.transactional_id for t in found)


class Reader:
    """Reads committed records all the time, as an application would."""

    def __init__(self, servers, topic):
        self._consumer, _ = _assigned(servers, topic)
        self.found = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def _read(self):
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found.append(int(message.value()))

    def wait_for(self, count, seconds=60):
        deadline = time.monotonic() + seconds
        while len(self.found) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        return sorted(self.found)


class Restarter:
    """Starts the broker again whenever a fault has killed it."""

    def __init__(self, broker, folder):
        self._broker, self._folder = broker, folder
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.restarts = 0

    def __enter__(self):
        self._tell()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def _tell(self):
        (self._folder / "pid.broker").write_text(str(self._broker.pid))

    def _watch(self):
        while not self._stopped.wait(0.05):
            if self._broker._process.poll() is not None:
                self._broker.restart()
                self.restarts += 1
                self._tell()
