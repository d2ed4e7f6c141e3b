"""Errors, named by what the caller must do next.

DualWriteError
├── RetryableError        run the whole block again; nothing of it happened
│   └── Fenced            another instance owns the slot; a new one will be leased
├── OutcomeUnknown        decided, but not known here; never run it again, recovery decides
├── HeuristicAbort        the database committed, Kafka was made to abort; a person must look
├── InvalidTxnState       the calls came in an order that the API forbids
├── ConfigurationError    change the configuration or the rights; a retry cannot help
└── KafkaError            the broker's answer, with its code
"""

import copyreg
from typing import Any

from dualwrite.wire.error_codes import ErrorCode


class DualWriteError(Exception):
    """Whatever dualwrite raises on its own account."""


class RetryableError(DualWriteError):
    """Nothing of this transaction happened; the whole block may be run again."""


class Fenced(RetryableError):
    """A newer instance owns this transactional id or slot."""


class OutcomeUnknown(DualWriteError):
    """The transaction may have been decided, but the answer is not known here. Do not run it again."""


class HeuristicAbort(DualWriteError):
    """The pair was aborted by force or by timeout although it may have been decided otherwise."""


class InvalidTxnState(DualWriteError):
    """The calls came in an order that the API forbids."""


class ConfigurationError(DualWriteError):
    """The configuration, a feature of the broker or a right is missing."""


class KafkaError(DualWriteError):
    """The broker answered with an error code that has no better name here."""

    def __init__(self, code: int, context: str) -> None:
        super().__init__(f"{context}: {ErrorCode.name_of(code)} ({code})")
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their text, which is not what the constructors here take.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]
