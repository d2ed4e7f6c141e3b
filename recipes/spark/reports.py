"""What a task tells the driver, and whether the reports of a batch fit together."""

from collections.abc import Sequence
from dataclasses import dataclass

from dualwrite.errors import DualWriteError
from dualwrite.recipes.spark.ledger import Participant


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The work of one task: a prepared transaction, or nothing because there were no rows."""

    attempt: str
    work: str
    batch: int
    partition: int
    rows: int = 0
    participant: Participant | None = None
    is_skipped: bool = False
    """The batch was decided before; the rows were read and dropped."""
    busy: int = 0
    """Slots that were found in use, each by an abandoned attempt of the same partition."""
    millis: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The reports of all tasks of one batch, found to belong together."""

    attempt: str
    work: str
    batch: int
    rows: int
    participants: tuple[Participant, ...]
    is_skipped: bool
    busy: int
    millis: float


def join(reports: Sequence[TaskReport], batch: int) -> BatchReport:
    """Check that all reports are of one attempt at `batch`; anything else is a fault in Spark."""
    attempts = {(r.attempt, r.work, r.batch, r.is_skipped) for r in reports}
    if len(attempts) != 1:
        raise DualWriteError(f"tasks of batch {batch} do not report one attempt: {attempts}")
    attempt, work, reported, is_skipped = attempts.pop()
    if reported != batch:
        raise DualWriteError(f"tasks report batch {reported}, Spark commits batch {batch}")
    if len({r.partition for r in reports}) != len(reports):
        raise DualWriteError(f"a partition of batch {batch} was reported twice")
    participants = tuple(r.participant for r in reports if r.participant is not None)
    if len({p.transactional_id for p in participants}) != len(participants):
        raise DualWriteError(f"two tasks of batch {batch} report the same transactional id")
    return BatchReport(
        attempt=attempt,
        work=work,
        batch=batch,
        rows=sum(r.rows for r in reports),
        participants=participants,
        is_skipped=is_skipped,
        busy=sum(r.busy for r in reports),
        millis=max(r.millis for r in reports),
    )


def nothing(attempt: str, work: str, batch: int) -> BatchReport:
    """The report of a batch without tasks."""
    return BatchReport(
        attempt=attempt,
        work=work,
        batch=batch,
        rows=0,
        participants=(),
        is_skipped=False,
        busy=0,
        millis=0.0,
    )
