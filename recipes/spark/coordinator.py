"""The driver's side of the sink: opens attempts, decides batches, ends transactions.

Only the coordinator ends transactions that a task has prepared. It always takes the id over first
(`InitProducerId` with keepPreparedTxn, KIP-939) and then looks into the ledger again: if a newer
attempt had been opened before this look, nothing is touched; if one is opened after it, its own
take-over fences what we are about to send. So a coordinator that was paused anywhere can do no harm.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from dualwrite.errors import ConfigurationError, DualWriteError, Fenced, HeuristicAbort
from dualwrite.prepared import PreparedTxnState
from dualwrite.recipes.spark.decision_log import DecisionLog
from dualwrite.recipes.spark.ledger import (
    Decision,
    Ledger,
    Superseded,
    closing,
    deciding,
    finishing,
    forgetting,
    opening,
    undeciding,
)
from dualwrite.recipes.spark.names import partition_of
from dualwrite.recipes.spark.reports import BatchReport, TaskReport, join
from dualwrite.recipes.spark.transactions import Found, Transactions

PARALLEL_ENDS = 8
FENCED_TRIES = 5

T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger("dualwrite.spark")


@dataclass(frozen=True, slots=True)
class Attempt:
    """An opened attempt, as it is shipped to the tasks."""

    nonce: str
    run: int
    decided_upto: Mapping[str, int]
    aborted: int = 0
    """Abandoned transactions that were found and aborted when the attempt was opened."""

    def skips(self, work: str, batch: int) -> bool:
        return batch <= self.decided_upto.get(work, -1)

    def only(self, begins: str) -> "Attempt":
        """Leave out other kinds of work: a sink may remember many jobs, and tasks carry this."""
        kept = {work: batch for work, batch in self.decided_upto.items() if work.startswith(begins)}
        return replace(self, decided_upto=kept)


@dataclass(frozen=True, slots=True)
class Settled:
    """How the open transactions of a sink were ended."""

    aborted: int
    lost: tuple[str, ...]
    """Decided transactions that the broker had aborted, by force or by timeout."""
    decided: int

    def require_nothing_lost(self, sink: str) -> None:
        if self.lost:
            partitions = sorted(map(partition_of, self.lost))
            raise HeuristicAbort(
                f"sink {sink}: {len(self.lost)} of {self.decided} decided transactions were aborted"
                f" by force or by timeout: {', '.join(self.lost)}. Lost are the rows of the tasks"
                f" for partition {', '.join(map(str, partitions))}. If all were, `dualwrite spark"
                " forget --lost` lets the batch be written again; if only some were, their rows"
                " are missing, and `dualwrite spark recover --accept-loss` goes on without them"
            )


class Coordinator:
    """Decides for one sink on behalf of one driver, known by its token."""

    def __init__(
        self,
        sink: str,
        token: str,
        transactions: Transactions,
        decisions: DecisionLog,
        parallel: int = PARALLEL_ENDS,
    ) -> None:
        self.sink = sink
        self._parallel = parallel
        self._token = token
        self._transactions = transactions
        self._decisions = decisions

    def open(self, *, accept_loss: bool = False) -> Attempt:
        """Shut out every earlier attempt, finish what is decided and abort the rest.

        `accept_loss` goes on although decided rows are lost, or may be: see `_refuse_strangers`.
        """
        nonce = secrets.token_hex(8)
        before_first = None if accept_loss else self._refuse_strangers
        ledger = self._decisions.update(opening(self._token, nonce, before_first))
        settled = self._settle(nonce, ledger.pending)
        if not accept_loss:
            settled.require_nothing_lost(self.sink)
        self._finish(ledger.pending)
        run = ledger.head.run if ledger.head else 0
        return Attempt(nonce, run, ledger.decided_upto, settled.aborted)

    def commit(self, reports: Sequence[TaskReport], batch: int) -> None:
        """Decide the batch and end its transactions; a batch that was skipped is decided already."""
        if not reports:
            return
        joined = join(reports, batch)
        if joined.is_skipped:
            self._require_decided(self._decisions.read(), joined)
            return
        self.decide(joined, lambda decision: self._decisions.update(deciding(decision)))

    def decide(self, joined: BatchReport, record: Callable[[Decision], object]) -> None:
        """Make the decision by `record`, then carry it out."""
        decision = Decision(
            work=joined.work,
            batch=joined.batch,
            attempt=joined.attempt,
            participants=joined.participants,
            metrics={"rows": joined.rows, "prepare_ms": joined.millis, "retries": joined.busy},
        )
        began = time.monotonic()
        record(decision)
        decided = time.monotonic()
        try:
            settled = self._settle(joined.attempt, [decision])
        except Superseded:
            # The batch is decided; whoever has opened the sink since then finishes it.
            log.warning("sink %s was taken over after batch %s", self.sink, joined.batch)
            return
        settled.require_nothing_lost(self.sink)
        ended = time.monotonic()
        self._finish(
            [decision],
            {
                "decide_ms": round((decided - began) * 1000, 3),
                "complete_ms": round((ended - decided) * 1000, 3),
                "orphans_aborted": settled.aborted,
            },
        )

    def abandon(self, nonce: str) -> None:
        """Give an attempt up: what it has decided is finished, what it has not can be no more.

        The door is shut first. A decision whose answer was lost may still be on its way, and
        reading "not decided" does not prove that it will not arrive.
        """
        ledger = self._decisions.update(closing(nonce))
        if ledger.is_newest(nonce):
            self._settle(nonce, ledger.pending).require_nothing_lost(self.sink)
            self._finish(ledger.pending)

    def recover(self, *, accept_loss: bool = False) -> Attempt:
        """Finish and abort whatever is open, and leave the sink closed."""
        attempt = self.open(accept_loss=accept_loss)
        self._decisions.update(closing(attempt.nonce))
        return attempt

    def is_unknown(self) -> bool:
        """True if nothing was ever decided or begun under this name, as far as anybody can see."""
        return self._decisions.read().head is None and not self._transactions.open_ids()

    def forget(self, work: str | None = None) -> None:
        """Forget finished decisions, of one query or job or of all: their batches may run again."""
        self._decisions.update(forgetting(work))

    def forget_lost(self) -> int:
        """Take back decisions whose transactions were all aborted; returns how many there were."""
        nonce = secrets.token_hex(8)
        ledger = self._decisions.update(opening(self._token, nonce, self._refuse_strangers))
        settled = self._settle(nonce, ledger.pending)
        if len(settled.lost) != settled.decided:
            raise DualWriteError(
                f"not forgotten: {len(settled.lost)} of {settled.decided} decided transactions were"
                " lost; the others are committed and would be written twice"
            )
        self._decisions.update(undeciding(ledger.pending))
        self._decisions.update(closing(nonce))
        return len(ledger.pending)

    def _refuse_strangers(self) -> None:
        """Refuse to begin a ledger for a sink that has transactions open already.

        The first attempt is written down before any task begins, so another ledger knows them:
        what it has decided would be taken here for abandoned, and aborted.
        """
        ids = self._transactions.open_ids()
        if ids:
            raise ConfigurationError(
                f"sink {self.sink} has open transactions ({', '.join(sorted(ids))}), and nothing"
                " of it was ever written down where its decisions are looked for. They may be"
                " decided elsewhere: name the same dualwrite.decisions (--decisions) as the query"
                " that left them. If that is gone for good, `dualwrite spark recover"
                " --accept-loss` aborts them"
            )

    def _require_decided(self, ledger: Ledger, joined: BatchReport) -> None:
        if not ledger.is_decided(joined.work, joined.batch):
            raise DualWriteError(
                f"batch {joined.batch} of {joined.work} was skipped as decided, but its decision"
                " is gone: it was forgotten while the batch ran"
            )

    def _settle(self, nonce: str, pending: Sequence[Decision]) -> Settled:
        """End everything that is open under the sink, once for each id."""
        recorded = {p.transactional_id: p.state for d in pending for p in d.participants}
        ends: dict[str, str] = {}
        ids = {*recorded, *self._transactions.open_ids()}
        for _ in range(FENCED_TRIES):
            ends |= self._settle_once(nonce, sorted(ids), recorded)
            ids = {one for one, end in ends.items() if end == "fenced"}
            if not ids:
                return Settled(
                    aborted=sum(end == "aborted" for end in ends.values()),
                    lost=tuple(sorted(one for one, end in ends.items() if end == "lost")),
                    decided=len(recorded),
                )
        raise Superseded(f"sink {self.sink}: somebody else keeps taking over {sorted(ids)}")

    def _settle_once(
        self, nonce: str, ids: Sequence[str], recorded: Mapping[str, PreparedTxnState]
    ) -> dict[str, str]:
        found: list[Found] = []
        try:
            self._each(lambda one: found.append(self._transactions.inspect(one)), ids)
            self._check_newest(nonce, found, recorded)
            ends = self._each(lambda one: self._end(one, recorded), found)
        finally:
            for one in found:
                one.close()
        return {one.transactional_id: end for one, end in zip(found, ends, strict=True)}

    def _check_newest(
        self, nonce: str, found: Sequence[Found], recorded: Mapping[str, PreparedTxnState]
    ) -> None:
        strays = [f for f in found if f.ongoing.has_transaction and not _is_recorded(f, recorded)]
        if strays and not self._decisions.read().is_newest(nonce):
            raise Superseded(f"sink {self.sink} has been opened by a newer attempt")

    def _end(self, found: Found, recorded: Mapping[str, PreparedTxnState]) -> str:
        state = recorded.get(found.transactional_id, PreparedTxnState.NONE)
        try:
            end = _commit(found, state) if state.has_transaction else "ended"
            if found.ongoing.has_transaction and found.ongoing != state:
                found.abort()
                log.info("aborted %s %s", found.transactional_id, found.ongoing)
                return "aborted" if end == "ended" else end
        except Fenced:
            return "fenced"
        return end

    def _finish(
        self, decisions: Sequence[Decision], metrics: Mapping[str, float] | None = None
    ) -> None:
        if decisions:
            self._decisions.update(finishing(decisions, metrics))

    def _each(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call for every item, several at a time; an error is raised when all have ended."""
        if self._parallel == 1 or len(items) < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(min(self._parallel, len(items))) as pool:
            return list(pool.map(call, items))


def _commit(found: Found, state: PreparedTxnState) -> str:
    try:
        found.commit(state)
    except HeuristicAbort:
        return "lost"
    return "ended"


def _is_recorded(found: Found, recorded: Mapping[str, PreparedTxnState]) -> bool:
    return recorded.get(found.transactional_id) == found.ongoing
