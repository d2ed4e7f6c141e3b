"""What the client raises beyond `dualwrite.errors`, by what the caller must do next.

    ConfigurationError
    └── UnsupportedByBroker   the broker lacks a feature that the call needs; nothing was changed
    KafkaError
    ├── KafkaTimeout          no answer in time; the same call may be made again
    ├── AbortableError        abort this transaction; the next one may succeed
    └── FatalError            this producer is finished; make a new one
        └── ProducerFenced    and it is `Fenced` too: a newer producer owns the transactional id

`retriable()`, `txn_requires_abort()` and `fatal()` answer as confluent-kafka's `KafkaError` does.
"""

from dualwrite.errors import ConfigurationError, Fenced, KafkaError
from dualwrite.wire.error_codes import ErrorCode


class UnsupportedByBroker(ConfigurationError):
    """The broker does not offer what the call needs (a version, a feature level)."""


class ClientError(KafkaError):
    """An error with confluent-kafka's three predicates."""

    def retriable(self) -> bool:
        return False

    def txn_requires_abort(self) -> bool:
        return False

    def fatal(self) -> bool:
        return False


class KafkaTimeout(ClientError):
    """No answer came in time. The same call may be made again, no other one in its place."""

    def __init__(self, context: str, last_error: Exception | None = None) -> None:
        why = "" if last_error is None else f" (last error: {last_error})"
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, f"no answer in time: {context}{why}")
        self.last_error = last_error

    def retriable(self) -> bool:
        return True


class AbortableError(ClientError):
    """The transaction cannot be committed; abort it, the next one may succeed."""

    def txn_requires_abort(self) -> bool:
        return True


class FatalError(ClientError):
    """The producer cannot go on; close it and make a new one."""

    def fatal(self) -> bool:
        return True


class ProducerFenced(FatalError, Fenced):
    """A newer producer with the same transactional id exists; this one is finished."""
