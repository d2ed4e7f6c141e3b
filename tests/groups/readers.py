"""Members of a group that run until they are stopped, one thread each, for any of the clients."""

import threading
import time
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WAIT_SECONDS = 40.0


def wait_for(condition, what, seconds=WAIT_SECONDS):
    """Wait until `condition()` is true; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def create_topic(broker, name, partitions=6):
    client = admin(broker)  # a variable: the call ends with its client
    client.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_SECONDS)


def produce(broker, topic, values, partitions=6):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_SECONDS) == 0


def begin(broker, group, topic, partitions=6):
    """Commit where to begin, so that nobody has to ask for the earliest offset.

    librdkafka 2.16 may ask for it twice, at once and by a timer half a second later, if it was assigned
    partitions before its connection was up; the second answer takes it back to the beginning.
    """
    consumer = Consumer(settings(broker, group))
    places = [TopicPartition(topic, p, 0) for p in range(partitions)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker, group, topic, partitions=6):
    """The sum of a group's committed offsets: how many messages it has done with."""
    consumer = Consumer(settings(broker, group))
    try:
        found = consumer.committed([TopicPartition(topic, p) for p in range(partitions)], 10)
        return sum(max(0, place.offset) for place in found)
    finally:
        consumer.close()


def settings(broker, group, **more):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
        **more,
    }


class Reader:
    """A librdkafka consumer that commits after each message."""

    def __init__(self, broker, group, topic, **more):
        self.values = []
        self.places = []  # (partition, offset) in the order of reading
        self.assigned = frozenset()
        self.assignments = 0
        self.error = None
        self._stop = threading.Event()
        self._consumer = Consumer(settings(broker, group, **more))
        self._consumer.subscribe([topic], on_assign=self._on_assign)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_assign(self, consumer, partitions):
        self.assignments += 1

    def _run(self):
        try:
            while not self._stop.is_set():
                message = self._consumer.poll(0.1)
                self.assigned = frozenset(p.partition for p in self._consumer.assignment())
                if message is not None and message.error() is None:
                    self.values.append(message.value())
                    self.places.append((message.partition(), message.offset()))
                    self._commit(message)
        except Exception as error:  # noqa: BLE001  shown by stop()
            self.error = error
        finally:
            self.assigned = frozenset()
            self._consumer.close()

    def _commit(self, message):
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                self._consumer.commit(message, asynchronous=False)
                return
            except KafkaException as problem:
                error = problem.args[0]
                # The broker is being restarted, or the group rebalances and somebody else goes on.
                if not error.retriable() or time.monotonic() > deadline:
                    return

    def stop(self):
        self._stop.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextmanager
def readers(make, count):
    """Some readers that are stopped in the end, whatever happens."""
    started = []
    try:
        for _ in range(count):
            started.append(make())
        yield started
    finally:
        for reader in started:
            reader.stop()


def share(members, partitions=6):
    """Whether every member has partitions and each partition has one member."""
    held = [p for member in members for p in member.assigned]
    return all(m.assigned for m in members) and sorted(held) == list(range(partitions))
