"""Two-phase commit across a database and Kafka."""

from dualwrite.admin import TransactionAdmin
from dualwrite.async_dual_writer import AsyncDualWriter
from dualwrite.async_producer import AsyncTwoPhaseProducer
from dualwrite.dual_writer import DualWriter
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
from dualwrite.retries import retrying
from dualwrite.transaction import Outcome, Rollback

__all__ = [
    "AsyncDualWriter",
    "AsyncTwoPhaseProducer",
    "ConfigurationError",
    "DualWriteError",
    "DualWriter",
    "Fenced",
    "GroupMetadata",
    "HeuristicAbort",
    "InvalidTxnState",
    "KafkaError",
    "Outcome",
    "OutcomeUnknown",
    "PreparedTxnState",
    "RetryableError",
    "Rollback",
    "TransactionAdmin",
    "TwoPhaseProducer",
    "retrying",
]
