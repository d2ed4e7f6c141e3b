"""A consumer that may see a message twice and must act on it once.

    seen = SeenMessages(engine, create=True)

    with Session(engine) as session, session.begin():
        if seen.first_time(session, "payments", message_id):
            ...                                  # the effect, in the same database transaction

The id of the message is written in the transaction of its effect: a second delivery, by a rebalance,
a restart or another instance at the same moment, finds it there and does nothing. Use it where the
offsets cannot lie in the database (`consume_to_db` is simpler where they can), or where producers may
send the same thing twice. Ids are kept for as long as duplicates may come: `forget_before` prunes.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, DateTime, Engine, MetaData, Table, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from dualwrite.adapters.sql.tables import BinaryText
from dualwrite.errors import ConfigurationError

TABLE = "kafka_seen_messages"
CONSUMER_BYTES_MAX = 100
ID_BYTES_MAX = 200


class SeenMessages:
    """The ids that were acted upon, in the database of the effects."""

    def __init__(self, engine: Engine, table: str = TABLE, *, create: bool = False) -> None:
        self.table = self.in_metadata(MetaData(), table)
        if create:
            self.table.metadata.create_all(engine)

    @staticmethod
    def in_metadata(metadata: MetaData, table: str = TABLE) -> Table:
        """The table in the application's own `MetaData`, for Alembic."""
        return Table(
            table,
            metadata,
            Column("consumer", BinaryText(CONSUMER_BYTES_MAX), primary_key=True),
            Column("message_id", BinaryText(ID_BYTES_MAX), primary_key=True),
            Column("seen_at", DateTime(timezone=True), nullable=False, index=True),
        )

    def first_time(self, session: Session, consumer: str, message_id: str) -> bool:
        """True if this consumer has not acted on the message yet; it has from now on.

        Waits for another transaction that has written the same id and is still open.
        """
        # MySQL's INSERT IGNORE would cut it off, and take another one for it.
        for name, most in ((consumer, CONSUMER_BYTES_MAX), (message_id, ID_BYTES_MAX)):
            if not 1 <= len(name.encode()) <= most:
                raise ConfigurationError(f"must have 1 to {most} bytes: {name!r}")
        seen_at = datetime.now(UTC)
        row = {"consumer": consumer, "message_id": message_id, "seen_at": seen_at}
        statement = self._insert_if_new(session).values(row)
        options = {"preserve_rowcount": True}
        result: Any = session.connection().execute(statement, execution_options=options)
        return bool(result.rowcount == 1)

    def _insert_if_new(self, session: Session) -> Any:
        """INSERT that leaves an existing row as it is; a SAVEPOINT around it would cost more, and
        pysqlite would commit it when it is the first statement."""
        name = session.get_bind().dialect.name
        if name == "postgresql":
            return postgresql.insert(self.table).on_conflict_do_nothing()
        if name == "sqlite":
            return sqlite.insert(self.table).on_conflict_do_nothing()
        if name in ("mysql", "mariadb"):
            return insert(self.table).prefix_with("IGNORE")
        raise ConfigurationError(f"no insert-if-new for {name}")

    def has_seen(self, session: Session, consumer: str, message_id: str) -> bool:
        key = (self.table.c.consumer == consumer) & (self.table.c.message_id == message_id)
        return session.execute(select(self.table.c.seen_at).where(key)).first() is not None

    def forget_before(self, session: Session, moment: datetime) -> int:
        """Delete ids that are older; returns how many there were."""
        statement = delete(self.table).where(self.table.c.seen_at < moment)
        result: Any = session.execute(statement)
        return int(result.rowcount)


def message_id_of(message: Any, header: str = "message-id") -> str:
    """The id that a producer put into a header, or else the message's place in the log.

    The place tells apart deliveries of one record; only an id of the producer's own also tells
    apart two records that mean the same.
    """
    for name, value in message.headers() or ():
        if name == header and value:
            return str(value.decode())
    return f"{message.topic()}/{message.partition()}/{message.offset()}"
