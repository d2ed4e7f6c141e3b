"""What differs between databases, as questions that a small file per database answers."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Insert, Table, Update

from dualwrite.store import CommitOutcome, DurabilityCheck


class Failure(enum.Enum):
    """Why a statement of ours failed, by what follows from it."""

    LOST = "the database did not answer"
    LOCKED = "an open transaction holds the row"
    CONFLICT = "the database chose this transaction to be run again"
    NO_TABLE = "a table or column is missing"
    DENIED = "the database refused the right"
    DOOMED = "an earlier statement of this transaction had failed"
    OTHER = "other"


class SqlDialect(ABC):
    """One database. The defaults are right where databases agree."""

    own_isolation_level: str | None = "READ COMMITTED"
    """Level of the store's own transactions, whatever the user's engine says."""

    @abstractmethod
    def now(self) -> ColumnElement[Any]:
        """The database's clock in UTC."""

    @abstractmethod
    def later(self, seconds: float) -> ColumnElement[Any]:
        """The database's clock moved by `seconds`."""

    @abstractmethod
    def upsert(
        self, table: Table, values: Mapping[str, object], changes: Mapping[str, object]
    ) -> Insert:
        """INSERT `values`; where the primary key exists already, UPDATE `changes` instead."""

    @contextmanager
    @abstractmethod
    def own_transaction(self, connection: Connection, lock_timeout: float) -> Iterator[None]:
        """Begin a transaction of the store itself: durable, and bounded in its waits."""

    def durable_update(self, statement: Update) -> Update:
        """Make the state write force, and give back, what its COMMIT's durability depends on."""
        return statement

    def durable_by(self, returned: object) -> bool:
        """Judge what the statement of `durable_update` gave back."""
        return True

    def engine_made(self, engine: Engine, *, is_ours: bool) -> None:  # noqa: B027 - a hook that few databases need
        """Prepare an engine before its first use; `is_ours` if it was made from a URL."""

    def join(self, connection: Connection) -> None:  # noqa: B027 - a hook that few databases need
        """Look at a connection that a dual write is about to use; refuse or force its settings."""

    def mark(self, connection: Connection) -> None:  # noqa: B027 - a hook that few databases need
        """Leave something in the transaction that is gone when it has ended by itself."""

    def is_marked(self, connection: Connection) -> bool:
        """Asked once, right before COMMIT: is it still the transaction that was marked?"""
        return True

    any_statement_begins = False
    """Whether `has_begun` is true after every statement, whatever it was."""

    def has_begun(self, connection: Connection) -> bool:
        """Where it can be known at no cost: whether there is an open transaction."""
        return False

    def begin_writing(self, connection: Connection) -> None:  # noqa: B027 - a hook that few databases need
        """Called once before the first flush of a transaction that the store began."""

    def commits_implicitly(self, statement: str) -> bool:
        """True for a statement that would commit the transaction behind our back."""
        return False

    def reads_from_snapshot(self, isolation_level: str, connection: Connection) -> bool:
        return False

    @abstractmethod
    def failure(self, error: BaseException) -> Failure: ...

    @abstractmethod
    def commit_outcome(self, error: BaseException) -> CommitOutcome:
        """What an error in answer to COMMIT proves. Anything not surely rolled back is unknown."""

    @abstractmethod
    def durability(self, connection: Connection, state: Table) -> Iterable[DurabilityCheck]: ...


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy keeps the driver's own in `orig`."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = getattr(current, "orig", None) or current.__cause__


def first_number(error: BaseException, numbers: Collection[int]) -> bool:
    """True if a driver's error carries one of these numbers as its first argument."""
    return any(cause.args[:1] and cause.args[0] in numbers for cause in causes(error))
