"""`Collector`: from records to batches: which partition, which batch, when it is full."""

from collections.abc import Callable, Iterator

from dualwrite.config import ClientConfig
from dualwrite.delivery import DeliveryCallback
from dualwrite.flows import verdicts
from dualwrite.flows.batching import PartitionQueue, Receipt
from dualwrite.flows.cluster import Cluster
from dualwrite.flows.steps import FOREVER
from dualwrite.partitioner import Partitioner
from dualwrite.wire.compression import Compression
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.records import HEADER_SIZE, RECORD_OVERHEAD_MAX, Headers, Pair

_HEADER_OVERHEAD_MAX = 10
_PLAIN_RECORDS_MAX = 1_000
_PLAIN_BYTES_MAX = 8_000  # longer records gain nothing

Choose = Callable[[int], int]


class Collector:
    """The open batches of one producer, and those that wait to be sent."""

    def __init__(self, cluster: Cluster, config: ClientConfig, choose: Choose) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.outstanding = 0
        """Records without an answer, those in open batches included."""
        self.linger_until_ms = FOREVER
        self._cluster = cluster
        self._config = config
        self._choose = choose
        self._partitioner = Partitioner(config.partitioner)
        self._compression = Compression.named(config.compression)
        self._batch_bytes = min(config.batch_bytes, config.message_bytes_max)
        self._batch_records = config.batch_messages
        self._records_max = config.queue_messages_max
        self._bytes_max = config.queue_kbytes_max * 1024
        self._bytes = 0
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._active: dict[PartitionQueue, None] = {}
        self._touched: dict[PartitionQueue, None] = {}  # used under the present epoch
        self._sticky: dict[str, PartitionQueue] = {}  # of records without a key, by topic

    @property
    def is_full(self) -> bool:
        return self.outstanding >= self._records_max or self._bytes >= self._bytes_max

    def put(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers | None,
        callback: DeliveryCallback | None,
        now_ms: float,
    ) -> bool:
        """Add a record of a topic whose metadata is known; True if there is something to send."""
        if self.outstanding >= self._records_max or self._bytes >= self._bytes_max:
            raise BufferError("the queue is full: call poll() and try again")
        return self._add(topic, key, value, partition, timestamp_ms, headers, callback, now_ms)

    def _add(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        timestamp_ms: int,
        headers: Headers | None,
        callback: DeliveryCallback | None,
        now_ms: float,
    ) -> bool:
        if partition >= 0 or key is None:
            queue = self._queue_at(topic, partition)
        else:
            queue = self._queue_for(topic, key)
        need = RECORD_OVERHEAD_MAX
        if value:
            need += len(value)
        if key:
            need += len(key)
        if headers:
            need += _size_of(headers)
        builder = queue.builder
        is_due = now_ms >= self.linger_until_ms
        if builder.size + need > self._batch_bytes or builder.count >= self._batch_records:
            self._refuse_too_large(need)
            self._seal(queue)
            builder = queue.builder
            is_due = True
        if not builder.count:
            self._open_batch(queue, now_ms)
        builder.append(key, value, headers, timestamp_ms)
        self.outstanding += 1
        if callback is not None:
            place = builder.count - 1
            queue.receipts.append(Receipt(place, callback, key, value, headers, timestamp_ms))
        return is_due

    def put_rows(
        self,
        topic: str,
        rows: Iterator[tuple[bytes | None, bytes | None, Headers | None, int]],
        partition: int,
        timestamp_ms: int,
        now_ms: float,
    ) -> tuple[int, bool]:
        """Add rows until they end or there is something to send; returns how many were taken, and
        whether there is something to send.

        `rows` is an iterator, so that the caller can go on where this stopped.
        """
        if self.is_full:
            return 0, True
        taken = 0
        pairs: list[Pair] = []  # what the last rows were, while they are of one kind
        kind: type[object] = object
        count_max, bytes_max = self.plain_limits(partition)
        try:
            for key, value, headers, given_ms in rows:
                taken += 1
                if (
                    type(key) is kind
                    and type(value) is bytes
                    and (key is None or len(key) <= bytes_max)
                    and len(value) <= bytes_max
                    and not (headers or given_ms)
                ):
                    pairs.append((key, value))
                    if len(pairs) < count_max:
                        continue
                    is_due = self.put_pairs(topic, pairs, partition, timestamp_ms, now_ms)
                else:
                    is_due = self.put_pairs(topic, pairs, partition, timestamp_ms, now_ms)
                    stamp_ms = given_ms or timestamp_ms
                    is_due |= self._add(
                        topic, key, value, partition, stamp_ms, headers, None, now_ms
                    )
                    kind = type(key) if key is None or type(key) is bytes else object
                if is_due or self.is_full:
                    return taken, True
                count_max, _ = self.plain_limits(partition)
        finally:  # what raises in `rows` leaves those before it in the transaction
            is_due = self.put_pairs(topic, pairs, partition, timestamp_ms, now_ms)
        return taken, is_due

    def plain_limits(self, partition: int) -> tuple[int, int]:
        """How many records `put_pairs` takes now, and how long their keys and values may be."""
        if partition < 0 and not self._partitioner.sticks:
            return 0, -1  # each of them goes where chance says
        left = self._records_max - self.outstanding
        longest = (self._batch_bytes - HEADER_SIZE - RECORD_OVERHEAD_MAX) // 2
        return min(left, _PLAIN_RECORDS_MAX), min(longest, _PLAIN_BYTES_MAX)

    def put_pairs(
        self, topic: str, pairs: list[Pair], partition: int, timestamp_ms: int, now_ms: float
    ) -> bool:
        """Add records that are nothing but key and value; True if there is something to send.

        Either all have a key or none has one, and they keep to `plain_limits`. The list is emptied.
        """
        if not pairs:
            return False
        is_due = now_ms >= self.linger_until_ms
        for place, some in self._by_partition(topic, pairs, partition).items():
            while some:
                queue = self._queue_at(topic, place)
                added = self._fill(queue, some, timestamp_ms, now_ms)
                is_due |= added < len(some)
                some = some[added:]
        pairs.clear()
        return is_due

    def _by_partition(self, topic: str, pairs: list[Pair], partition: int) -> dict[int, list[Pair]]:
        """What goes to each partition; -1 stands for the one that takes records without a key."""
        if partition >= 0 or pairs[0][0] is None:
            return {partition: pairs}
        count = len(self._cluster.topics[topic].leaders)
        hash_key, hashes = self._partitioner.hash_key, self._partitioner.hashes
        found: dict[int, list[Pair]] = {}
        for pair in pairs:
            key = pair[0]
            place = hash_key(key or b"") % count if key or hashes(key) else -1
            try:
                found[place].append(pair)
            except KeyError:
                found[place] = [pair]
        return found

    def _fill(
        self, queue: PartitionQueue, pairs: list[Pair], timestamp_ms: int, now_ms: float
    ) -> int:
        """Add as many as the open batch takes, and close it if some are left."""
        builder = queue.builder
        if not builder.count:
            self._open_batch(queue, now_ms)
        fitting = pairs[: self._batch_records - builder.count]
        added = builder.extend(fitting, timestamp_ms, self._batch_bytes)
        self.outstanding += added
        if added < len(pairs):
            self._seal(queue)
        return added

    def put_encoded(
        self,
        topic: str,
        partition: int,
        encoded: bytes,
        count: int,
        timestamp_ms: int,
        now_ms: float,
    ) -> None:
        """Add a whole batch of records that were encoded elsewhere (`BatchBuilder.fill`)."""
        self._refuse_too_large(len(encoded))
        queue = self._queues.get((topic, partition)) or self._open_queue(topic, partition)
        self._seal(queue)
        self._open_batch(queue, now_ms)
        queue.builder.fill(encoded, count, timestamp_ms)
        self.outstanding += count
        self._seal(queue)

    def _queue_at(self, topic: str, partition: int) -> PartitionQueue:
        """The given partition, or the one that takes records without a key."""
        if partition >= 0:
            return self._queues.get((topic, partition)) or self._open_queue(topic, partition)
        return self._sticky.get(topic) or self._queue_for(topic, None)

    def _queue_for(self, topic: str, key: bytes | None) -> PartitionQueue:
        known = self._cluster.topics[topic]
        if self._partitioner.hashes(key):
            partition = self._partitioner.place(key, len(known.leaders))
            return self._queues.get((topic, partition)) or self._open_queue(topic, partition)
        queue = self._sticky.get(topic)
        if queue is None:
            available = known.available
            partition = available[self._choose(len(available))]
            queue = self._queues.get((topic, partition)) or self._open_queue(topic, partition)
            if self._partitioner.sticks:
                self._sticky[topic] = queue
        return queue

    def _open_queue(self, topic: str, partition: int) -> PartitionQueue:
        count = len(self._cluster.topics[topic].leaders)
        if partition >= count:
            raise verdicts.plain_failure(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic!r} has {count} partitions"
            )
        queue = self._queues[topic, partition] = PartitionQueue(topic, partition)
        return queue

    def _open_batch(self, queue: PartitionQueue, now_ms: float) -> None:
        queue.opened_ms = now_ms
        self._active[queue] = None
        self._touched[queue] = None
        linger_until_ms = now_ms + self._config.linger_ms
        if linger_until_ms < self.linger_until_ms:
            self.linger_until_ms = linger_until_ms

    def _refuse_too_large(self, need: int) -> None:
        if need + HEADER_SIZE > self._config.message_bytes_max:
            raise verdicts.plain_failure(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of about {need} bytes,"
                f" 'message.max.bytes' is {self._config.message_bytes_max}",
            )

    def _seal(self, queue: PartitionQueue) -> None:
        if not queue.builder.count:
            return
        batch = queue.seal(
            self.producer_id, self.epoch, self._compression, self._config.delivery_timeout_ms
        )
        self._bytes += len(batch.data)
        # KIP-480: records without a key go elsewhere when a batch is closed.
        if self._sticky.get(queue.topic) is queue:
            del self._sticky[queue.topic]


def _size_of(headers: Headers) -> int:
    return sum(_HEADER_OVERHEAD_MAX + 3 * len(name) + len(value or b"") for name, value in headers)
