"""Two-phase commit across a database and Kafka."""

from dualwrite.admin import TransactionAdmin
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
from dualwrite.group_metadata import GroupMetadata
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer

__all__ = [
    "ConfigurationError",
    "DualWriteError",
    "Fenced",
    "GroupMetadata",
    "HeuristicAbort",
    "InvalidTxnState",
    "KafkaError",
    "OutcomeUnknown",
    "PreparedTxnState",
    "RetryableError",
    "TransactionAdmin",
    "TwoPhaseProducer",
]
