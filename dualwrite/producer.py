"""`TwoPhaseProducer`: a transactional producer whose transactions can be prepared (KIP-939).

    producer.init_transactions(keep_prepared_txn=True)
    producer.complete_transaction(state_from_the_database)     # whatever a crash left open
    producer.begin_transaction()
    producer.produce("orders", key=b"1", value=b"..")
    state = producer.prepare_transaction()                     # every record is durable
    ... write str(state) to the database together with the data, commit the database ...
    producer.complete_transaction(state)

Timeouts are seconds; None stands for `max.block.ms`. After a `KafkaTimeout` the same call may be
made again, and no other one in its place. Calls may come from several threads.
"""

import logging
import random
import threading
import time
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, TypeVar

from dualwrite import tracing
from dualwrite.blocking import BlockingDriver
from dualwrite.config import milliseconds, parse_config
from dualwrite.content import (
    ANY_PARTITION,
    Content,
    HeadersGiven,
    Row,
    as_bytes,
    as_callback,
    as_headers,
    as_partition,
    as_state,
    as_timestamp,
)
from dualwrite.delivery import DeliveryCallback
from dualwrite.errors import DualWriteError
from dualwrite.failures import KafkaTimeout
from dualwrite.flows.burst import Burst
from dualwrite.flows.states import State
from dualwrite.flows.steps import Flow, Step
from dualwrite.flows.transaction import Completion, TransactionFlows
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import by_topic
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.records import Headers

__all__ = ["Completion", "TwoPhaseProducer"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CLOSE_MS = 5_000
_IN_TRANSACTION = State.IN_TRANSACTION  # a name of its own: looked at for every record
_NO_BURST = Burst()


class TwoPhaseProducer:
    """A producer with transactions that survive the process between prepare and complete."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Check the configuration (librdkafka's keys); no connection is made yet."""
        self._config = parse_config(config, transactional=True)
        self._flows = TransactionFlows(self._config, random.Random().randrange)
        self._driver = BlockingDriver(self._config, self._flows.cluster)
        self._lock = threading.RLock()
        # What `produce` needs for every record, without a detour.
        self._states = self._flows.states
        self._topics = self._flows.cluster.topics
        self._put = self._flows.sender.put
        self._burst = _NO_BURST
        self._is_traced = False
        self._wall_clock_ms = 0.0
        self._stamp_ms = 0
        self._stamp_until_ms = 0.0
        self._started_commit: tuple[Flow[None], Step] | None = None

    def init_transactions(
        self, keep_prepared_txn: bool = False, timeout: float | None = None
    ) -> None:
        """Take over the transactional id; every older producer with this id is fenced from now on.

        A transaction that the id left open is aborted, or kept with `keep_prepared_txn`: then the
        producer is in prepared state, `prepared_txn_state` names what is open, and only commit,
        abort, complete and close are allowed.

        Raises `UnsupportedByBroker` if the broker lacks what two-phase commit needs (code 35
        included), `ConfigurationError` if a right is missing (53), `KafkaTimeout`.
        """
        self._run("init_transactions", self._flows.init(keep_prepared_txn), timeout)

    def begin_transaction(self) -> None:
        """Begin a transaction; nothing is sent before the first record."""
        with self._lock:
            self._flows.begin()
            self._wall_clock_ms = (time.time() - monotonic()) * 1000
            self._stamp_until_ms = 0.0
            self._is_traced = tracing.is_on()

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersGiven = None,
    ) -> None:
        """Put a record into the transaction; it is sent with others, at the latest by prepare.

        The first record for a topic waits for the topic's metadata. `BufferError` says that the
        queue is full: call `poll()` and try again.
        """
        if value is not None and type(value) is not bytes:
            value = as_bytes(value)
        if key is not None and type(key) is not bytes:
            key = as_bytes(key)
        burst = self._burst
        if (
            topic == burst.topic
            and partition == burst.partition
            and type(key) is burst.key_type
            and value is not None
            and on_delivery is None
            and not timestamp
            and not headers
            and len(value) <= burst.bytes_max
            and (not key or len(key) <= burst.bytes_max)
            and len(burst.pairs) < burst.count_max
            and monotonic() < burst.until
        ):
            pair = (key, value)
            burst.pairs.append(pair)
            if burst is self._burst:
                return
            with self._lock:  # waits for whoever has closed the burst
                if not burst.has_missed(pair):
                    return
        if partition != ANY_PARTITION:
            partition = as_partition(partition)
        if timestamp:
            timestamp = as_timestamp(timestamp)
        if on_delivery is not None:
            as_callback(on_delivery)
        given = as_headers(headers) if headers else None
        if self._is_traced:
            given = tracing.carry(given)
        with self._lock:
            self._produce(topic, value, key, partition, on_delivery, timestamp, given)

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        on_delivery: DeliveryCallback | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        """Put one record into its batch, send what is due, and begin a burst of others like it."""
        if self._states.state is not _IN_TRANSACTION:
            self._states.require("produce")
        if topic not in self._topics:
            self._run("produce", self._flows.know_topic(topic), None)
        now_ms = monotonic() * 1000
        if now_ms >= self._stamp_until_ms:
            self._stamp(now_ms)
        stamp_ms = timestamp or self._stamp_ms
        try:
            is_due = self._end_burst()
            is_due |= self._put(
                topic, key, value, partition, stamp_ms, headers, on_delivery, now_ms
            )
        except Exception:
            raise
        except BaseException:
            self._interrupted()
            raise
        if is_due:
            self._run("produce", self._flows.pump(), None)
        elif on_delivery is None and not (timestamp or headers or self._is_traced):
            self._begin_burst(topic, partition, type(key), now_ms)

    def _stamp(self, now_ms: float) -> None:
        """Find the timestamp of records for this millisecond: many have the same."""
        self._stamp_ms = int(now_ms + self._wall_clock_ms)
        self._stamp_until_ms = self._stamp_ms + 1 - self._wall_clock_ms

    def _begin_burst(
        self, topic: str, partition: int, key_type: type[object], now_ms: float
    ) -> None:
        """Take the records that follow without a look at anything else, if they are like this one."""
        sender = self._flows.sender
        until_ms = min(self._stamp_until_ms, sender.linger_until_ms)
        if until_ms <= now_ms or self._burst is not _NO_BURST:
            return  # it would take nothing, or a signal's handler has begun one
        count_max, bytes_max = sender.plain_limits(partition)
        self._burst = Burst(
            topic,
            partition,
            key_type,
            count_max,
            bytes_max,
            self._stamp_ms,
            now_ms,
            until_ms / 1000,
        )

    def _end_burst(self) -> bool:
        """Put what a burst has taken into batches, which comes before all else that is done under
        the lock; True if there is something to send."""
        burst, self._burst = self._burst, _NO_BURST
        if burst is _NO_BURST:
            return False
        return self._flows.sender.put_pairs(
            burst.topic, burst.close(), burst.partition, burst.timestamp_ms, burst.now_ms
        )

    def produce_batch(self, topic: str, rows: Iterable[Row], partition: int = -1) -> int:
        """Put many records (key, value, headers, timestamp in ms or 0) into the transaction.

        Cheaper per record than `produce`, without callbacks; waits while the queue is full.
        Returns how many there were.
        """
        flows = self._flows
        remaining = iter(rows)
        total = 0
        with self._lock:
            flows.states.require("produce")
            if topic not in self._topics:
                self._run("produce_batch", flows.know_topic(topic), None)
            try:
                self._end_burst()
                while True:
                    taken, is_due = flows.sender.put_rows(
                        topic, remaining, partition, int(time.time() * 1000), monotonic() * 1000
                    )
                    total += taken
                    if not is_due:
                        return total
                    self._run("produce_batch", flows.send_full(), None)
                    flows.states.require("produce")
            except Exception:
                raise
            except BaseException:
                self._interrupted()
                raise

    def produce_encoded(self, topic: str, partition: int, encoded: bytes, count: int) -> None:
        """Put one batch of `count` records, encoded as a batch's body without timestamp deltas.

        For callers that encode columns as a whole; waits while the queue is full.
        """
        flows = self._flows
        with self._lock:
            flows.states.require("produce")
            self.partition_count(topic)
            try:
                self._end_burst()
                flows.sender.put_encoded(
                    topic, partition, encoded, count, int(time.time() * 1000), monotonic() * 1000
                )
            except Exception:
                raise
            except BaseException:
                self._interrupted()
                raise
            self._run("produce_encoded", flows.send_full(), None)

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has; waits for its metadata."""
        with self._lock:
            if topic not in self._topics:
                self._run("partition_count", self._flows.know_topic(topic), None)
            return len(self._topics[topic].leaders)

    def send_offsets_to_transaction(
        self,
        offsets: Any,
        group_metadata: GroupMetadata | bytes | str,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer's offsets with the transaction (KIP-447).

        `offsets` is a list of `confluent_kafka.TopicPartition` (or anything with `topic`,
        `partition` and `offset`), or a dict from (topic, partition) to the offset.
        """
        group = GroupMetadata.of(group_metadata)
        self._run(
            "send_offsets_to_transaction",
            self._flows.send_offsets(by_topic(offsets), group),
            timeout,
        )

    def start_prepare(self, timeout: float | None = None) -> PreparedTxnState:
        """Send what is buffered and give the pair that `prepare_transaction` will give.

        Nothing is durable yet: the pair may be written down meanwhile, but not decided.
        """
        return self._run("start_prepare", self._flows.start_prepare(), timeout)

    def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until everything is durable in Kafka and leave the outcome open.

        Preparing an empty transaction ends it and gives the empty state. Needs
        `transaction.two.phase.commit.enable` (else `InvalidTxnState`). Raises what stood in the
        way of a record, `AbortableError` mostly; the transaction must then be aborted.
        """
        return self._run_and_tell("prepare_transaction", self._flows.prepare(), timeout)

    def complete_transaction(
        self, state: PreparedTxnState | str, timeout: float | None = None
    ) -> Completion:
        """Commit what is prepared if it is `state`, else abort it; nothing prepared is "none".

        Raises `HeuristicAbort` if the broker remembers that `state` was aborted by force or by
        timeout.
        """
        return self._run_and_tell(
            "complete_transaction", self._flows.complete(as_state(state)), timeout
        )

    def flush_transaction(self, timeout: float | None = None) -> PreparedTxnState:
        """Wait until every record is acknowledged and return the pair of the open transaction.

        Unlike prepare it leaves the transaction open to more records, and works without two-phase
        commit: it is what recovery by a raw EndTxn builds on. An empty transaction gives the empty state.
        """
        return self._run_and_tell("flush_transaction", self._flows.flush_transaction(), timeout)

    def start_commit(self) -> None:
        """Ask for the commit without waiting for the answer, which `commit_transaction` takes."""
        flow = self._flows.commit()
        with self._lock:
            self._states.require_open("start_commit")
            try:
                self._end_burst()
                step = self._driver.start(flow)
            except Exception:
                raise
            except BaseException:
                self._interrupted()
                raise
            self._started_commit = None if step is None else (flow, step)

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Commit what is open or prepared. A timeout leaves the outcome unknown: call it again."""
        started, self._started_commit = self._started_commit, None
        flow, reached = started or (self._flows.commit(), None)
        self._run_and_tell("commit_transaction", flow, timeout, reached)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort what is open or prepared; records that wait to be sent are dropped."""
        self._run_and_tell("abort_transaction", self._flows.abort(), timeout)

    def bump_epoch(self, timeout: float | None = None) -> None:
        """Take a new epoch between transactions, so that pairs differ without Transactions V2."""
        self._run("bump_epoch", self._flows.bump(), timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Send what is buffered and wait for the answers; returns how many records are left."""
        with self._lock:
            self._flows.states.require("flush")
            try:
                self._run("flush", self._flows.drain(), timeout)
            except KafkaTimeout:
                logger.debug("flush: %d records are still under way", len(self))
        self._flows.sender.deliveries.serve()
        return len(self)

    def poll(self, timeout: float = 0) -> int:
        """Do network work, run delivery callbacks and return how many were run."""
        with self._lock:
            self._flows.states.require("poll")
            until_ms = (monotonic() + timeout) * 1000 if timeout > 0 else 0
            if self._burst.pairs or self._flows.sender.outstanding:
                self._run("poll", self._flows.pump(until_ms), None)
        return self._flows.sender.deliveries.serve()

    def close(self, timeout: float | None = None, *, leave_open: bool = False) -> None:
        """Abort an open transaction and close the connections. A prepared one is left as it is.

        An abort that fails is logged: the broker ends the transaction when its id is used again.
        `leave_open` aborts nothing: somebody else ends the transaction by its pair.
        """
        flows = self._flows
        with self._lock:
            if flows.states.state is State.CLOSED:
                return
            try:
                self._end_burst()
                is_open = flows.states.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)
                if is_open and not leave_open:
                    self._abort_at_last(timeout)
            finally:
                flows.states.close()
                self._driver.close()
        self._flows.sender.deliveries.serve_quietly()

    def _abort_at_last(self, timeout: float | None) -> None:
        limit_ms = milliseconds(timeout, _CLOSE_MS)
        try:
            self._driver.run(self._flows.abort(), limit_ms, "close")
        except DualWriteError as error:
            logger.warning(
                "close could not abort transactional_id=%s: %s", self._flows.transactional_id, error
            )

    def _run(
        self, call: str, flow: Flow[T], timeout: float | None, reached: Step | None = None
    ) -> T:
        """Run one flow under the lock, so that no other call sees it half done."""
        limit_ms = milliseconds(timeout, self._config.block_ms_max)
        context = f"{call} of {self._flows.transactional_id!r}"
        with self._lock:
            self._flows.states.require_open(call)
            try:
                self._end_burst()
                return self._driver.run(flow, limit_ms, context, reached)
            except Exception:
                raise
            except BaseException:
                self._interrupted()
                raise

    def _interrupted(self) -> None:
        """An interrupt (Ctrl-C) can strike between reading bytes and taking them in."""
        self._burst = _NO_BURST
        self._started_commit = None
        self._driver.abandon()
        self._flows.interrupted()

    def _run_and_tell(
        self, call: str, flow: Flow[T], timeout: float | None, reached: Step | None = None
    ) -> T:
        try:
            with tracing.span(call, transactional_id=self._flows.transactional_id):
                return self._run(call, flow, timeout, reached)
        finally:
            self._flows.sender.deliveries.serve_quietly()

    @property
    def prepared_txn_state(self) -> PreparedTxnState:
        """What is prepared and not completed; the empty state if nothing is."""
        return self._flows.prepared

    @property
    def producer_pair(self) -> PreparedTxnState:
        """Producer id and epoch that the broker gave to this producer."""
        return self._flows.pair

    @property
    def transaction_version(self) -> int:
        """2 if every transaction has its own pair (KIP-890), else 1; known after init."""
        return self._flows.version

    def __len__(self) -> int:
        """Records and callbacks that wait, as confluent-kafka counts them."""
        sender = self._flows.sender
        return sender.outstanding + len(sender.deliveries) + len(self._burst.pairs)

    def __enter__(self) -> "TwoPhaseProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
