"""What a sink has decided: the protocol of the Spark sink, without any IO.

A *run* is the life of one driver, known by a random token and numbered in the order of arrival.
An *attempt* is one try to write one micro-batch, known by a random nonce. Opening an attempt
closes every earlier one: from then on only the newest attempt can decide. This is what makes
recovery safe, which aborts whatever is open and not decided: the door is shut before the house is
swept. A driver that was overtaken is refused for ever, so that two drivers cannot take turns.

A *decision* says that a batch is committed and names its prepared transactions. It is made once
per (query, batch). Whoever finds it finishes it; nobody can take it back.

Every change is a function from the ledger to the entries to write. A decision log runs it against
the ledger as it durably is, with nothing in between. All changes may be run again: one that has
already happened changes nothing, so an unknown outcome is resolved by repeating it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dualwrite.errors import DualWriteError, Fenced
from dualwrite.prepared import PreparedTxnState

HEAD = "head"
TOKENS_MAX = 4096
"""Overtaken drivers that are remembered. Safety rests on attempts; this bounds the head's size."""

Outcome = Literal["commit", "abort", "refuse"]


class Superseded(Fenced):
    """A newer driver or attempt has taken the sink; this one can decide nothing any more."""


class AlreadyDecided(DualWriteError):
    """The batch was decided by another attempt; this attempt's transactions must be aborted."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One prepared transaction of a decided batch."""

    transactional_id: str
    state: PreparedTxnState
    version: int = 2
    """Transaction version under which it was prepared; below 2 the pair alone says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch that is committed. Finished ones keep their number and give up the rest."""

    work: str
    """`query:<id>` of a streaming query, or `job:<id>` of a batch job."""
    batch: int
    attempt: str
    participants: tuple[Participant, ...] = ()
    is_done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Who may decide now."""

    run: int
    token: str
    attempt: str
    is_closed: bool = False
    """Nobody may decide until the next attempt is opened."""
    older: tuple[str, ...] = ()
    """Tokens of the drivers that were overtaken, oldest first."""


Entry = Head | Decision | None
"""None takes the entry out."""
Entries = Mapping[str, Entry]
Change = Callable[["Ledger"], Entries]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that a sink has durably written down."""

    head: Head | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)

    def with_entries(self, entries: Entries) -> "Ledger":
        head, decisions = self.head, dict(self.decisions)
        for name, entry in entries.items():
            if isinstance(entry, Head):
                head = entry
            elif isinstance(entry, Decision):
                decisions[name] = entry
            elif name == HEAD:
                head = None
            else:
                decisions.pop(name, None)
        return Ledger(head, decisions)

    @property
    def pending(self) -> list[Decision]:
        """Decisions whose transactions may still be open."""
        return [d for d in self.decisions.values() if not d.is_done]

    @property
    def decided_upto(self) -> dict[str, int]:
        """The newest decided batch of each query and job."""
        return {work: decision.batch for work, decision in self.decisions.items()}

    def is_newest(self, attempt: str) -> bool:
        """True as long as nobody has opened the sink after this attempt."""
        return self.head is not None and self.head.attempt == attempt

    def may_decide(self, attempt: str) -> bool:
        return self.head is not None and self.is_newest(attempt) and not self.head.is_closed

    def is_decided(self, work: str, batch: int) -> bool:
        return batch <= self.decided_upto.get(work, -1)

    def outcome(self, transactional_id: str, ongoing: PreparedTxnState) -> Outcome:
        """How recovery ends an open transaction: what no decision names was never decided.

        A ledger that was never opened knows nothing of it, and recovery refuses to guess.
        """
        if self.head is None:
            return "refuse"
        named = {(p.transactional_id, p.state) for d in self.pending for p in d.participants}
        return "commit" if (transactional_id, ongoing) in named else "abort"


def opening(token: str, attempt: str, before_first: Callable[[], object] | None = None) -> Change:
    """Become the one who may decide; a driver that was overtaken stays overtaken.

    `before_first` may refuse to begin a ledger that is not there yet.
    """

    def change(ledger: Ledger) -> Entries:
        head = ledger.head
        if head is None:
            if before_first is not None:
                before_first()
            return {HEAD: Head(run=1, token=token, attempt=attempt)}
        if token in head.older:
            raise Superseded(
                f"a newer driver (run {head.run}) has taken this sink over; this driver cannot"
                " write to it again. Two live queries need two sink ids. If the other one has ended,"
                " or was `dualwrite spark recover`, go on as a new driver: register(spark) again,"
                " or make a new KafkaSink"
            )
        if ledger.may_decide(attempt):
            return {}
        if token == head.token:
            return {HEAD: replace(head, attempt=attempt, is_closed=False)}
        older = (*head.older, head.token)[-TOKENS_MAX:]
        return {HEAD: Head(run=head.run + 1, token=token, attempt=attempt, older=older)}

    return change


def deciding(decision: Decision) -> Change:
    """Decide a batch, if its attempt is still the newest and nobody has decided it before."""

    def change(ledger: Ledger) -> Entries:
        found = ledger.decisions.get(decision.work)
        if found is not None and found.batch >= decision.batch:
            if (found.batch, found.attempt) == (decision.batch, decision.attempt):
                return {}
            raise AlreadyDecided(
                f"batch {decision.batch} of {decision.work} was decided by another attempt"
                f" (batch {found.batch}, attempt {found.attempt})"
            )
        if not ledger.may_decide(decision.attempt):
            run = ledger.head.run if ledger.head else 0
            raise Superseded(
                f"batch {decision.batch} of {decision.work} was not decided: another query, driver"
                f" or recovery (run {run}) has opened this sink since the batch began. Two live"
                " queries need two sink ids"
            )
        if found is not None and not found.is_done:
            raise DualWriteError(f"batch {found.batch} of {decision.work} is not finished yet")
        return {decision.work: decision}

    return change


def closing(attempt: str) -> Change:
    """Make sure that the attempt cannot decide any more; what it has decided stays decided."""

    def change(ledger: Ledger) -> Entries:
        head = ledger.head
        if head is None or head.attempt != attempt or head.is_closed:
            return {}
        return {HEAD: replace(head, is_closed=True)}

    return change


def finishing(decisions: Iterable[Decision], metrics: Mapping[str, float] | None = None) -> Change:
    """Note that no transaction of these decisions is open any more."""
    finished = tuple(decisions)

    def change(ledger: Ledger) -> Entries:
        done: dict[str, Entry] = {}
        for decision in finished:
            found = ledger.decisions.get(decision.work)
            if found is not None and _same(found, decision) and not found.is_done:
                merged = {**found.metrics, **(metrics or {})}
                done[found.work] = replace(found, participants=(), is_done=True, metrics=merged)
        return done

    return change


def forgetting(work: str | None = None) -> Change:
    """Take finished decisions out, of one query or job or of all: their batches may run again."""

    def change(ledger: Ledger) -> Entries:
        chosen = [d for d in ledger.decisions.values() if work in (None, d.work)]
        open_ones = [d.work for d in chosen if not d.is_done]
        if open_ones:
            raise DualWriteError(
                f"not forgotten: {', '.join(open_ones)} may have open transactions; recover first"
            )
        return {decision.work: None for decision in chosen}

    return change


def undeciding(lost: Iterable[Decision]) -> Change:
    """Take decisions back of which nothing was committed, so that their batches run again."""
    gone = tuple(lost)

    def change(ledger: Ledger) -> Entries:
        found = [ledger.decisions.get(decision.work) for decision in gone]
        return {
            f.work: None for f, d in zip(found, gone, strict=True) if f is not None and _same(f, d)
        }

    return change


def _same(a: Decision, b: Decision) -> bool:
    return (a.work, a.batch, a.attempt) == (b.work, b.batch, b.attempt)


def encode(entry: Head | Decision) -> bytes:
    """Write an entry as JSON; `decode` reads it whatever a newer version adds."""
    if isinstance(entry, Head):
        body: dict[str, Any] = {
            "run": entry.run,
            "token": entry.token,
            "attempt": entry.attempt,
            "closed": entry.is_closed,
            "older": list(entry.older),
        }
    else:
        body = {
            "work": entry.work,
            "batch": entry.batch,
            "attempt": entry.attempt,
            "done": entry.is_done,
            "participants": [
                [p.transactional_id, str(p.state), p.version] for p in entry.participants
            ],
            "metrics": dict(entry.metrics),
        }
    return json.dumps(body, separators=(",", ":")).encode()


def decode(name: str, raw: bytes) -> Head | Decision:
    body = json.loads(raw)
    if name == HEAD:
        return Head(
            run=body["run"],
            token=body["token"],
            attempt=body["attempt"],
            is_closed=body["closed"],
            older=tuple(body["older"]),
        )
    return Decision(
        work=body["work"],
        batch=body["batch"],
        attempt=body["attempt"],
        is_done=body["done"],
        participants=tuple(
            Participant(i, PreparedTxnState.parse(s), v) for i, s, v in body["participants"]
        ),
        metrics=body["metrics"],
    )
