"""SQLAlchemy sessions whose plain `commit()` commits to Kafka too.

    Session = sessionmaker(engine)
    register(Session, dw)

    with Session.begin() as session:
        session.add(Order(...))
        produce(session, "orders", key="1", value=b"..")

`register` gives the factory's sessions another class. A session takes a slot at its first `produce`;
one that never produces is an ordinary session. Errors are those of a dual write: `commit()` may
raise `RetryableError` or `OutcomeUnknown`. `outcome(session)` tells how the last one ended.
"""

from types import TracebackType
from typing import Any, cast

from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from dualwrite.content import Content, HeadersGiven
from dualwrite.delivery import DeliveryCallback
from dualwrite.dual_writer import DualWriter, ExplicitTransaction
from dualwrite.errors import ConfigurationError, InvalidTxnState
from dualwrite.transaction import Outcome

_WRITER = "dualwrite.writer"
_OPEN = "dualwrite.open"
_OUTCOME = "dualwrite.outcome"


def register(factory: "sessionmaker[Any]", writer: DualWriter) -> None:
    """Make the sessions of this factory take part in dual writes.

    For an event loop use `AsyncDualWriter.transaction(session)`: an async session's `commit()` is
    not the place for Kafka's answers.
    """
    if not isinstance(factory, sessionmaker):
        raise ConfigurationError(f"register needs a sessionmaker, not {type(factory).__name__}")
    base = factory.class_
    factory.class_ = type(f"DualWrite{base.__name__}", (DualWriteSession, base), {})
    info = dict(factory.kw.get("info") or {})
    factory.configure(info={**info, _WRITER: writer})


def produce(
    session: Session,
    topic: str,
    value: Content = None,
    key: Content = None,
    partition: int = -1,
    on_delivery: DeliveryCallback | None = None,
    timestamp: int = 0,
    headers: HeadersGiven = None,
) -> None:
    """Buffer a record that is committed with the session, or vanishes with its rollback."""
    _open(session).produce(topic, value, key, partition, on_delivery, timestamp, headers)


def outcome(session: Session) -> Outcome | None:
    """How the session's last dual write ended; None if there was none."""
    return cast(Outcome | None, session.info.get(_OUTCOME))


def _open(session: Session) -> ExplicitTransaction:
    found = session.info.get(_OPEN)
    if isinstance(found, ExplicitTransaction):
        return found
    writer = session.info.get(_WRITER)
    if not isinstance(writer, DualWriter) or not isinstance(session, DualWriteSession):
        raise InvalidTxnState("the session's factory is not registered for dual writes")
    opened = writer.begin(session)
    session.info[_OPEN] = opened
    return opened


class DualWriteSession(Session):
    """A session whose end is the end of a dual write, once it has produced."""

    def commit(self) -> None:
        tx = self.info.pop(_OPEN, None)
        if tx is None:
            # Either an ordinary session, or the dual write itself, which commits through here.
            super().commit()
            return
        tx.commit()
        self.info[_OUTCOME] = tx.outcome

    def rollback(self) -> None:
        tx = self.info.pop(_OPEN, None)
        if tx is None:
            super().rollback()
        else:
            tx.rollback()

    def close(self) -> None:
        tx = self.info.pop(_OPEN, None)
        if tx is not None:
            tx.rollback()
        super().close()

    def begin(self, nested: bool = False) -> SessionTransaction:
        begun = super().begin(nested)
        # The block of a SAVEPOINT ends by itself; that of a session ends through `commit()` above.
        return begun if nested else cast(SessionTransaction, _Block(self, begun))


class _Block:
    """`with session.begin()` that goes through the session's own `commit` and `rollback`."""

    def __init__(self, session: DualWriteSession, begun: SessionTransaction) -> None:
        self._session = session
        self._begun = begun

    def __enter__(self) -> SessionTransaction:
        return self._begun

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.rollback()

    def commit(self) -> None:
        try:
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise

    def rollback(self) -> None:
        self._session.rollback()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._begun, name)
