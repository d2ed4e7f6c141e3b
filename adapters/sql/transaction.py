"""`SqlTransaction`: one local transaction, guarded from its first statement to its COMMIT."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from dualwrite.adapters.sql.dialect import Failure, SqlDialect
from dualwrite.adapters.sql.failures import translated
from dualwrite.adapters.sql.links import Link, OwnLink, PsycopgLink, SessionLink
from dualwrite.adapters.sql.savepoints import Savepoints
from dualwrite.errors import ConfigurationError, InvalidTxnState, RetryableError
from dualwrite.store import CommitUnknown, ResourceName

log = logging.getLogger("dualwrite.adapters.sql")

_ENDS = re.compile(
    r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
    r"(?:COMMIT|END|ABORT|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""A statement that ends the transaction without its connection's knowledge."""

Resources = Mapping[str, Callable[[], object]]
"""How to make what the user works with, by name."""


class SqlTransaction:
    """A transaction in the user's own session or connection, or in one that the store made.

    While it is open a bare `commit()` is refused, because it would decide the data without the
    state, and so is a statement that ends it by itself (COMMIT as text, DDL on MySQL).
    """

    def __init__(
        self,
        dialect: SqlDialect,
        link: Link,
        resources: Resources,
        *,
        close: Callable[[], None],
        is_own: bool,
        reads_from_snapshot: bool,
    ) -> None:
        self._dialect = dialect
        self._link = link
        self._resources = resources
        self._made: dict[str, object] = {}
        self._close = close
        self._is_own = is_own
        self.reads_from_snapshot = reads_from_snapshot
        self._savepoints = Savepoints()
        self._listening: list[tuple[object, str, Callable[..., object]]] = []
        self._is_ending = False
        self._is_over = False
        self._was_ended = False
        """By somebody else: the user, or the database."""
        self._must_have_begun = False
        self._commit_sent = False
        self._commit_done = False
        self._guard()

    @property
    def handle(self) -> object:
        return self

    @property
    def link(self) -> Link:
        """Where the store's own statements go; `InvalidTxnState` if there is nothing open."""
        if self._is_over:
            raise InvalidTxnState("the local transaction has already been ended")
        if self._was_ended:
            raise InvalidTxnState("the local transaction was ended by itself, or in the block")
        return self._link

    def resource(self, name: ResourceName) -> object:
        if name in self._made:
            return self._made[name]
        if name not in self._resources:
            has = " or ".join(f"tx.{known}" for known in self._resources)
            raise ConfigurationError(f"this transaction has no {name}; use {has}")
        return self._made.setdefault(name, self._resources[name]())

    def watch_savepoints(
        self, opened: Callable[[str], None], rolled_back: Callable[[str], None]
    ) -> None:
        # psycopg shows its savepoints to nobody.
        self._savepoints.watch(opened, rolled_back)

    def flush(self) -> None:
        if isinstance(self._link, PsycopgLink) and not self._link.is_marked():
            self._was_ended = True
        connection = self._link.connection
        if connection is not None:
            self._look(connection)
            if self._is_own:
                self._dialect.begin_writing(connection)
        self.link.flush()

    def commit(self) -> None:
        link = self.link
        if link.connection is None and link.is_doomed():  # others are asked in `before_commit`
            # PostgreSQL would answer COMMIT with ROLLBACK, and no driver would raise.
            self.rollback()
            raise InvalidTxnState("a statement of this transaction had failed: rolled back")
        self._is_ending = True
        if link.connection is None:
            self._commit_sent = True
        try:
            link.commit()
        except BaseException as error:  # noqa: BLE001 - whatever it is, COMMIT may have been done
            self._commit_failed(error)
        else:
            if not self._commit_sent:
                self._throw_away()  # whoever holds the transaction cannot end it otherwise now
            self._finish()
            if not self._commit_sent:
                raise InvalidTxnState("the session's commit() has sent no COMMIT")

    def rollback(self) -> None:
        if self._is_over:
            return
        self._is_ending = True
        try:
            self._link.rollback()
        except Exception as error:  # noqa: BLE001 - the connection is given up
            log.debug("rollback failed, the connection is thrown away: %s", error)
            self._throw_away()
        self._finish()

    def _commit_failed(self, error: BaseException) -> None:
        if self._commit_done:
            # A hook of the session failed after COMMIT was answered: the data is durable.
            log.error("committed, but a hook of the session failed: %s", error, exc_info=error)
            self._throw_away()
            self._finish()
            if not isinstance(error, Exception):
                raise error
            return
        is_forbidden = type(error).__name__ == "ProgrammingError" and self._link.connection is None
        if not self._commit_sent or is_forbidden:
            self.rollback()
            raise error
        if self._dialect.commit_outcome(error) == "rolled_back":
            self.rollback()
            if self._dialect.failure(error) in (Failure.CONFLICT, Failure.LOCKED):
                raise RetryableError(f"COMMIT was refused: {error}") from error
            raise error
        self._throw_away()
        self._finish()
        raise CommitUnknown(f"COMMIT was sent, and its answer is not known: {error}") from error

    def _throw_away(self) -> None:
        try:
            self._link.invalidate()
        except Exception as error:  # noqa: BLE001 - it is given up anyway
            log.debug("the connection could not even be closed: %s", error)

    def _finish(self) -> None:
        self._is_over = True
        for target, name, listener in self._listening:
            event.remove(target, name, listener)
        self._listening.clear()
        self._close()

    def _guard(self) -> None:
        if isinstance(self._link, OwnLink):
            self._dialect.mark(self._link.connection)
            self._link.watcher = self  # its connection is watched already (`Guards`)
            return
        if isinstance(self._link, PsycopgLink):
            self._link.mark()
        connection = self._link.connection
        if connection is None:
            return
        self._dialect.mark(connection)
        self._listen(connection, "commit", lambda _: self.before_commit())
        self._listen(connection, "rollback", lambda _: self.before_rollback())
        self._listen(connection, "before_cursor_execute", self._before_cursor_execute)
        if isinstance(self._link, SessionLink):
            self._listen(self._link.session, "after_begin", self.after_begin)
            self._listen(self._link.session, "after_commit", self.after_commit, insert=True)

    def _listen(
        self, target: object, name: str, listener: Callable[..., object], **how: Any
    ) -> None:
        event.listen(target, name, listener, **how)
        self._listening.append((target, name, listener))

    # What happens on the connection and in the session.

    def before_commit(self) -> None:
        if not self._is_ending:
            raise InvalidTxnState("commit() inside a dual write: leaving the block commits")
        connection = self._link.connection
        assert connection is not None
        # Here, because hooks of the session have run since the last statement of ours.
        self._look(connection)
        if self._link.is_doomed():
            raise InvalidTxnState("a statement of this transaction had failed")
        with translated(self._dialect, "preparing COMMIT"):
            self._was_ended |= not self._dialect.is_marked(connection)
        _ = self.link
        self._commit_sent = True

    def _look(self, connection: Connection) -> None:
        """Notice that the transaction has ended by itself: what was done in it is gone, or final."""
        if isinstance(self._link, OwnLink):
            self._was_ended |= self._link.is_lost
        has_begun = self._dialect.has_begun(connection)
        self._was_ended |= self._must_have_begun and not has_begun
        self._must_have_begun = has_begun

    def before_rollback(self) -> None:
        if not self._is_ending:
            self._was_ended = True

    def after_commit(self, session: Session) -> None:
        self._commit_done = self._commit_sent

    def after_begin(self, session: Session, ends: object, connection: Connection) -> None:
        if not self._is_ending and connection is not self._link.connection:
            raise ConfigurationError("the session uses a second database in a dual write")

    def _before_cursor_execute(
        self, connection: Connection, cursor: object, statement: str, *_: object
    ) -> None:
        self.before_execute(statement)

    def before_execute(self, statement: str) -> None:
        connection = self._link.connection
        assert connection is not None
        self._look(connection)
        if self._savepoints.see(statement):
            # pysqlite begins no transaction for a SAVEPOINT: its release would then be final.
            self._dialect.begin_writing(connection)
        if _ENDS.match(statement) or self._dialect.commits_implicitly(statement):
            raise InvalidTxnState(
                f"this statement would end the transaction by itself: {statement[:60]}"
            )
        self._must_have_begun |= self._dialect.any_statement_begins
