"""What the database says of a transaction, and the actions that follow from it."""

from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from dualwrite import operations
from dualwrite.adapters.opening import open_store
from dualwrite.errors import DualWriteError
from dualwrite.operations import Refusal
from dualwrite.recipes.console.cluster import ClusterReader
from dualwrite.store import Heuristic, StoreRow

RECORDED_BY = "console"
START_SECONDS = 4.0
"""How long a ZooKeeper is waited for: a console that does not start is started again."""
# Whoever writes by this store claims a row before its first transaction.
NO_ROW = "the store has no row for it, so another database may decide about it"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What would be done, why, and the row that it rests on; `advice` is "unknown" on a failure."""

    advice: str
    reasons: tuple[str, ...]
    row: StoreRow | None = None

    @property
    def updated_ms(self) -> int:
        """When the row was written; 0 if that is not known."""
        at = self.row.updated_at if self.row else None
        return int(at.timestamp() * 1000) if at else 0


class Database:
    """The state store of one or more apps, opened once for all pages."""

    def __init__(self, url: str, cluster: ClusterReader, table: str | None = None) -> None:
        self.scheme = url.partition(":")[0].partition("+")[0]
        self._store = open_store(url, table, start_seconds=START_SECONDS)
        self._cluster = cluster

    def close(self) -> None:
        self._store.close()

    def verdict(self, transactional_id: str) -> Verdict:
        """Never raises: a page about a stuck transaction is needed most when something is down."""
        try:
            explanation, _ = operations.look(self._store, self._cluster.admin, transactional_id)
            row = self._store.row(operations.slot_of(self._store, transactional_id))
        except (DualWriteError, SQLAlchemyError, OSError) as error:
            return Verdict("unknown", (f"the store did not answer: {error}",))
        if row is None and explanation.advice != "nothing":
            return Verdict("unknown", (*explanation.reasons[:2], NO_ROW))
        return Verdict(explanation.advice, explanation.reasons, row)

    def resolve(self, transactional_id: str, *, now: bool) -> str:
        """End it as the database says: "commit", "abort" or "nothing"."""
        if not self._has_row(transactional_id):
            raise Refusal(NO_ROW)
        explanation, _ = operations.look(self._store, self._cluster.admin, transactional_id)
        return operations.resolve(
            self._cluster.config, self._store, explanation, transactional_id, now=now
        )

    def terminate(self, transactional_id: str, reason: str) -> None:
        """Abort it; with a reason even against the database's word, or without it."""
        if not reason and not self._has_row(transactional_id):
            raise Refusal(NO_ROW)
        operations.terminate(
            self._cluster.config,
            self._store,
            self._cluster.admin,
            transactional_id,
            reason=reason,
            recorded_by=RECORDED_BY,
        )

    def _has_row(self, transactional_id: str) -> bool:
        slot = operations.slot_of(self._store, transactional_id)
        return self._store.row(slot) is not None

    def heuristics(self, transactional_id: str) -> list[Heuristic]:
        try:
            return self._store.heuristics(transactional_id)
        except (DualWriteError, SQLAlchemyError, OSError):
            return []
