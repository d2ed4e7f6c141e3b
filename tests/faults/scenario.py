"""A short life of a client, told so that what must be true afterwards can be checked.

Transactions of two records each over two partitions: some commit, some abort, one is prepared and left
to a second producer. Whatever the broker did not answer is unknown: it may have happened, wholly or not
at all.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from confluent_kafka import Consumer, KafkaError, TopicPartition

from dualwrite import DualWriteError, PreparedTxnState, TwoPhaseProducer

TOPIC = "scenario"
PARTITIONS = 2
ROUNDS = 4
LAST_STEPS = 4
# Long enough for a busy machine, short enough to notice a dead broker.
PATIENCE = {"max.block.ms": 4000, "delivery.timeout.ms": 4000, "request.timeout.ms": 4000}
# After recovery nothing may fail, so it is long for the busiest machine.
SECONDS_AFTERWARDS = 60
PATIENCE_AFTERWARDS = dict.fromkeys(PATIENCE, 1000 * SECONDS_AFTERWARDS)


@dataclass
class Story:
    """What the client was told."""

    committed: list[list[str]] = field(default_factory=list)
    aborted: list[list[str]] = field(default_factory=list)
    unknown: list[list[str]] = field(default_factory=list)
    prepared: PreparedTxnState | None = None
    prepared_values: list[str] = field(default_factory=list)
    decided: bool = False
    """The prepared transaction was committed and that was acknowledged."""
    is_complete: bool = False
    seen: list[str] = field(default_factory=list)
    """What a read_committed reader has been given, noted after it was given."""

    @property
    def steps(self) -> int:
        """How far the client has come: two for every round, and `LAST_STEPS`."""
        ended = len(self.committed) + len(self.aborted)
        prepared = bool(self.prepared_values) + (self.prepared is not None) + self.decided
        return 2 * ended + len(self.unknown) + prepared + self.is_complete

    @property
    def must_be_seen(self) -> set[str]:
        values = {value for committed in self.committed for value in committed}
        return values | set(self.prepared_values if self.decided else ())


def producer(
    bootstrap: str,
    transactional_id: str,
    *,
    two_phase: bool = False,
    patience: Mapping[str, int] = PATIENCE,
) -> TwoPhaseProducer:
    return TwoPhaseProducer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.two.phase.commit.enable": two_phase,
            "linger.ms": 0,
            **patience,
        }
    )


def live(bootstrap: str, story: Story | None = None, rounds: int = ROUNDS) -> Story:
    """Play the whole scenario, or as much of it as the broker survives.

    Who wants to watch gives the story that is to be written.
    """
    story = story or Story()
    try:
        _ordinary(story, bootstrap, rounds)
        _prepared(story, bootstrap)
        story.is_complete = True
    except DualWriteError:
        pass  # the broker is gone, or refuses: what was not told is unknown
    return story


def _ordinary(story: Story, bootstrap: str, rounds: int) -> None:
    writer = producer(bootstrap, "ordinary")
    try:
        writer.init_transactions()
        for number in range(rounds):
            values = [f"{number}-{partition}" for partition in range(PARTITIONS)]
            story.unknown.append(values)
            writer.begin_transaction()
            for partition, value in enumerate(values):
                writer.produce(TOPIC, value.encode(), partition=partition)
            if number % 3 == 2:
                writer.flush()
                story.unknown.remove(values)
                story.aborted.append(values)  # nobody will ever ask for its commit
                writer.abort_transaction()
            else:
                writer.commit_transaction()
                story.unknown.remove(values)
                story.committed.append(values)
    finally:
        writer.close()


def _prepared(story: Story, bootstrap: str) -> None:
    first = producer(bootstrap, "two-phase", two_phase=True)
    try:
        first.init_transactions(keep_prepared_txn=True)
        first.begin_transaction()
        values = [f"prepared-{partition}" for partition in range(PARTITIONS)]
        story.prepared_values = values
        for partition, value in enumerate(values):
            first.produce(TOPIC, value.encode(), partition=partition)
        story.prepared = first.prepare_transaction()
    finally:
        first.close()
    second = producer(bootstrap, "two-phase", two_phase=True)
    try:
        second.init_transactions(keep_prepared_txn=True)
        assert second.prepared_txn_state == story.prepared
        second.complete_transaction(story.prepared)
        story.decided = True
    finally:
        second.close()


@contextmanager
def watching(bootstrap: str, story: Story) -> Iterator[threading.Thread]:
    """A read_committed reader beside the client; ends by itself when it has seen a complete story."""
    over = threading.Event()
    reader = threading.Thread(target=_watch, args=(bootstrap, story, over))
    reader.start()
    try:
        yield reader
    finally:
        over.set()
        reader.join()


def _watch(bootstrap: str, story: Story, over: threading.Event) -> None:
    consumer = _reader(bootstrap)
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        while not (story.is_complete and story.must_be_seen <= set(story.seen)):
            if over.is_set():
                return
            message = consumer.poll(0.1)
            if message is not None and not message.error():
                story.seen.append(message.value().decode())
    finally:
        consumer.close()


def read(bootstrap: str) -> list[str]:
    """Every value that a read_committed reader sees, partition after partition."""
    consumer = _reader(bootstrap)
    values = []
    try:
        if TOPIC not in consumer.list_topics(timeout=SECONDS_AFTERWARDS).topics:
            return []
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(TOPIC, partition, 0)])
            message = consumer.poll(SECONDS_AFTERWARDS)
            while message is not None and not message.error():
                values.append(message.value().decode())
                message = consumer.poll(SECONDS_AFTERWARDS)
            assert message is not None, "not read to its end"
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
    finally:
        consumer.close()
    return values


def _reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "verifier",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,  # else closing waits for a broker that is gone
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is told by an empty answer
            "log_level": 0,
        }
    )


def verify(story: Story, bootstrap: str) -> None:
    """Recover the prepared transaction by its state, then compare what is there with what was told."""
    patient = partial(producer, bootstrap, patience=PATIENCE_AFTERWARDS)
    if story.prepared is not None and not story.decided:
        # Recovery in the client's place: the database holds the state, so it must commit.
        recoverer = patient("two-phase", two_phase=True)
        recoverer.init_transactions(keep_prepared_txn=True)
        outcome = recoverer.complete_transaction(story.prepared)
        recoverer.close()
        assert outcome in ("committed", "none")
    elif story.prepared_values and story.prepared is None:
        # It never was prepared: recovery aborts whatever is open.
        recoverer = patient("two-phase", two_phase=True)
        recoverer.init_transactions(keep_prepared_txn=True)
        recoverer.complete_transaction("")
        recoverer.close()
    closer = patient("ordinary")
    closer.init_transactions()  # ends what an ordinary transaction left open
    closer.close()

    values = read(bootstrap)
    assert len(values) == len(set(values)), f"twice: {sorted(values)}"
    seen = set(values)
    assert set(story.seen) <= seen, f"seen and gone: {set(story.seen) - seen}"
    for committed in story.committed:
        assert set(committed) <= seen, f"lost: {committed}, seen {sorted(seen)}"
    for aborted in story.aborted:
        assert not set(aborted) & seen, f"aborted and seen: {aborted}"
    for unknown in story.unknown:
        assert len(set(unknown) & seen) in (0, len(unknown)), f"torn: {unknown}"
    if story.prepared is not None:
        assert set(story.prepared_values) <= seen, "prepared, decided and lost"
    else:
        assert not set(story.prepared_values) & seen, "never prepared and seen"
