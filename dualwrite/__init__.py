"""Two-phase commit across a database and Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from dualwrite.sessions import produce, register
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
    "produce",
    "register",
    "retrying",
]

# Imported when first asked for: the broker, the command line and Spark's workers need few of these.
_HOMES = {
    "AsyncDualWriter": "async_dual_writer",
    "AsyncTwoPhaseProducer": "async_producer",
    "ConfigurationError": "errors",
    "DualWriteError": "errors",
    "DualWriter": "dual_writer",
    "Fenced": "errors",
    "GroupMetadata": "group_metadata",
    "HeuristicAbort": "errors",
    "InvalidTxnState": "errors",
    "KafkaError": "errors",
    "Outcome": "transaction",
    "OutcomeUnknown": "errors",
    "PreparedTxnState": "prepared",
    "RetryableError": "errors",
    "Rollback": "transaction",
    "TransactionAdmin": "admin",
    "TwoPhaseProducer": "producer",
    "produce": "sessions",
    "register": "sessions",
    "retrying": "retries",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
