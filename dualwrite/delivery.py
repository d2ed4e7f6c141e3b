"""What a delivery callback is told of a record, in confluent-kafka's form, and when."""

import logging
from collections import deque
from collections.abc import Callable

from dualwrite.errors import KafkaError
from dualwrite.wire.records import Headers

logger = logging.getLogger(__name__)

NO_OFFSET = -1001
"""confluent-kafka's OFFSET_INVALID: the record was not delivered, or its offset is not known."""

TIMESTAMP_CREATE_TIME = 1
TIMESTAMP_LOG_APPEND_TIME = 2


class DeliveredMessage:
    """A record after its delivery or failure; the accessors are methods, as in confluent-kafka."""

    __slots__ = (
        "_error",
        "_headers",
        "_key",
        "_offset",
        "_partition",
        "_timestamp_ms",
        "_timestamp_type",
        "_topic",
        "_value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        timestamp_ms: int,
        timestamp_type: int = TIMESTAMP_CREATE_TIME,
        error: KafkaError | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._key = key
        self._value = value
        self._headers = headers
        self._timestamp_ms = timestamp_ms
        self._timestamp_type = timestamp_type
        self._error = error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """The kind of timestamp (1 the producer's, 2 the log's) and milliseconds since 1970."""
        return self._timestamp_type, self._timestamp_ms

    def error(self) -> KafkaError | None:
        return self._error

    def __len__(self) -> int:
        return len(self._value or b"")

    def __repr__(self) -> str:
        return f"DeliveredMessage({self._topic!r}, {self._partition}, offset {self._offset})"


DeliveryCallback = Callable[[KafkaError | None, DeliveredMessage], object]


class Deliveries(deque[tuple[DeliveryCallback, KafkaError | None, DeliveredMessage]]):
    """The callbacks that are still to be run, with what they are told."""

    def serve(self) -> int:
        """Run them and return how many there were; what they raise reaches the caller."""
        served = 0
        while True:
            try:
                callback, error, message = self.popleft()
            except IndexError:  # not asked before: another thread may take the last one
                return served
            served += 1
            callback(error, message)

    def serve_quietly(self) -> None:
        """As above, where a callback must not hide how a transaction ended."""
        while self:
            try:
                self.serve()
            except Exception:
                logger.exception("a delivery callback failed")
