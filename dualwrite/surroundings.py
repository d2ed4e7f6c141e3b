"""What the steps of a dual write need around them: the store, Kafka, and whom to tell."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dualwrite import metrics
from dualwrite.admin import BrokerFeatures, TransactionDescription
from dualwrite.errors import ConfigurationError, HeuristicAbort
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.store import Store

logger = logging.getLogger("dualwrite.writer")


class Kafka(Protocol):
    """The cluster, as far as a dual write needs it. In an event loop the calls are awaitable."""

    def producer(self, transactional_id: str, *, two_phase: bool) -> TwoPhaseProducer: ...
    def cluster_id(self) -> str: ...
    def features(self) -> BrokerFeatures: ...
    def describe(self, transactional_id: str) -> TransactionDescription | None: ...
    def open_ids(self, pattern: str) -> list[str]:
        """Ids with an open transaction that match the pattern in full."""
        ...

    def end_txn(self, transactional_id: str, pair: PreparedTxnState, commit: bool) -> None:
        """End exactly this transaction, without taking over its id."""
        ...

    def close(self) -> None: ...


def _nothing(step: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class EndedTxn:
    """One in-doubt transaction that recovery has ended."""

    transactional_id: str
    pair: PreparedTxnState
    verdict: Literal["commit", "abort"]


@dataclass(slots=True)
class Surroundings:
    """One writer's view of the world."""

    app: str
    owner_name: str
    store: Store
    kafka: Kafka
    adopt: bool = False
    at: Callable[[str], None] = _nothing
    """Told the name of each step as it is done; tests stop the process there."""
    pause: Callable[[float], object] = time.sleep
    """Waits for some seconds; awaitable in an event loop."""
    cluster_id: str = ""
    resume_timeout: float = 900.0
    """Seconds after which a broker without KIP-939 aborts a transaction."""
    heuristic_aborts: list[str] = field(default_factory=list)
    ended: "list[EndedTxn] | None" = None
    """What recovery has ended, if somebody wants to know."""

    def check_cluster(self, transactional_id: str, bound: str) -> None:
        """Refuse a row that remembers another cluster's transactions."""
        if bound in ("", self.cluster_id) or self.adopt:
            return
        raise ConfigurationError(
            f"{transactional_id} is bound to Kafka cluster {bound!r}, this one is"
            f" {self.cluster_id!r}: a copy of another environment's database, or a rebuilt"
            " cluster; to bind it anew, open once with adopt=True"
        )

    def recovered(self, transactional_id: str, pair: PreparedTxnState, *, committed: bool) -> None:
        verdict: Literal["commit", "abort"] = "commit" if committed else "abort"
        metrics.recovered.labels(self.app, verdict).inc()
        if self.ended is not None:
            self.ended.append(EndedTxn(transactional_id, pair, verdict))
        self.tell(logging.INFO, "txn_recovered", transactional_id, pair, verdict=verdict)

    def alarm(self, event: str, transactional_id: str, pair: PreparedTxnState) -> None:
        """Something that a person must look at."""
        metrics.alarms.labels(self.app, event).inc()
        level = logging.WARNING if event in _HARMLESS else logging.ERROR
        self.tell(level, event, transactional_id, pair)

    def heuristic_abort(self, transactional_id: str, pair: PreparedTxnState) -> None:
        """The database committed and Kafka was made to abort: the messages are gone."""
        self.heuristic_aborts.append(f"{transactional_id} {pair}")
        self.alarm("heuristic_abort", transactional_id, pair)

    def raise_heuristic_aborts(self) -> None:
        """Raise once for what recovery has found; it is in the store's heuristics from then on."""
        if not self.heuristic_aborts:
            return
        found, self.heuristic_aborts = self.heuristic_aborts, []
        raise HeuristicAbort(
            "committed in the database, but aborted in Kafka by force or timeout: "
            + ", ".join(found)
            + "; recorded in the heuristics table, the next open goes on"
        )

    def tell(
        self,
        level: int,
        event: str,
        transactional_id: str,
        pair: PreparedTxnState = PreparedTxnState.NONE,
        verdict: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Log one event; the fields of `extra` are stable."""
        fields = {
            "event": event,
            "app": self.app,
            "transactional_id": transactional_id,
            "txn": str(pair),
            "verdict": verdict,
        }
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value)
        if error is not None:
            text += f" error={error}"
        logger.log(level, "%s", text, extra=fields)


_HARMLESS = {"new_database", "heuristic_abort_known"}
