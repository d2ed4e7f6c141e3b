"""The session over a connection that the store took itself, made when somebody asks for it."""

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from dualwrite.adapters.sql.links import OwnLink


class OwnSession(Session):
    """Takes over the transaction that is open on its connection, and ends it."""

    link: OwnLink

    def commit(self) -> None:
        self._join()
        super().commit()

    def rollback(self) -> None:
        self._join()
        super().rollback()

    def _join(self) -> None:
        """What is ended through the session includes what was done on the connection alone."""
        if not self.link.has_session_begun and self.link.connection.in_transaction():
            self.connection()


def own_session(link: OwnLink) -> Session:
    session = OwnSession(
        link.connection, expire_on_commit=False, join_transaction_mode="control_fully"
    )
    session.link = link
    link.session = session
    return session


def own_async_session(link: OwnLink, connection: AsyncConnection) -> AsyncSession:
    session = AsyncSession(
        connection,
        sync_session_class=OwnSession,
        expire_on_commit=False,
        join_transaction_mode="control_fully",
    )
    core = session.sync_session
    assert isinstance(core, OwnSession)
    core.link = link
    link.session = core
    return session


def _after_begin(session: OwnSession, ends: SessionTransaction, connection: Connection) -> None:
    session.link.has_session_begun = True
    if session.link.watcher is not None:
        session.link.watcher.after_begin(session, ends, connection)


def _after_commit(session: OwnSession) -> None:
    if session.link.watcher is not None:
        session.link.watcher.after_commit(session)


event.listen(OwnSession, "after_begin", _after_begin)
# Before the application's own hooks, whose failure does not undo a COMMIT that was answered.
event.listen(OwnSession, "after_commit", _after_commit, insert=True)
