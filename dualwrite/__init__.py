"""Two-phase commit across a database and Kafka."""

from dualwrite.errors import (
    ConfigurationError,
    DualWriteError,
    Fenced,
    HeuristicAbort,
    InvalidTxnState,
    KafkaError,
    OutcomeUnknown,
    RetryableError,
)
from dualwrite.prepared import PreparedTxnState

__all__ = [
    "ConfigurationError",
    "DualWriteError",
    "Fenced",
    "HeuristicAbort",
    "InvalidTxnState",
    "KafkaError",
    "OutcomeUnknown",
    "PreparedTxnState",
    "RetryableError",
]
