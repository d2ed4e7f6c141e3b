"""The parts of a sink put together from its options, in whichever process needs them.

Spark runs a sink in several short-lived processes: one opens the attempt, several write, another
one commits. All they share is the options and the driver's token, so each builds its own parts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.decision_log import DecisionLog
from dualwrite.recipes.spark.homes import open_log
from dualwrite.recipes.spark.options import SinkOptions
from dualwrite.recipes.spark.resumed import ResumedTransactions
from dualwrite.recipes.spark.transactions import Transactions, TwoPhaseTransactions


@dataclass(frozen=True)
class Engine:
    """A sink in the hands of one driver; small enough to be sent to every task."""

    options: SinkOptions
    token: str
    start_seconds: float | None = None
    """How long a ZooKeeper that holds the decisions is waited for, if not as long as usual."""

    def transactions(self) -> Transactions:
        if self.options.mode == "resume":
            return ResumedTransactions(self.options.sink, self.options.kafka)
        return TwoPhaseTransactions(self.options.sink, self.options.kafka)

    @contextmanager
    def decisions(self, home: Any = None) -> Iterator[DecisionLog]:
        """Open the ledger; `home` is a store that the caller has open already."""
        options = self.options
        log = open_log(home or options.decisions, options.kafka, options.sink, self.start_seconds)
        try:
            yield log
        finally:
            log.close()

    def coordinator(self, decisions: DecisionLog) -> Coordinator:
        return Coordinator(self.options.sink, self.token, self.transactions(), decisions)
