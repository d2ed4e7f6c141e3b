"""The databases that the conformance suite runs on."""

from sqlalchemy import String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dualwrite.adapters.sql import SqlStore

LOCK_TIMEOUT_SECONDS = 0.3


class Base(DeclarativeBase):
    pass


class Item(Base):
    """A piece of the application's own data."""

    __tablename__ = "item"
    key: Mapped[str] = mapped_column(String(50), primary_key=True)


class SqlDatabase:
    waits_for_writer = True
    has_clock_leases = True
    absent_resource = "batch"

    def __init__(self, url: str, **options) -> None:
        self.url = url
        self.engine = create_engine(url)
        self.options = {"lock_timeout": LOCK_TIMEOUT_SECONDS, **options}
        self._stores: list[SqlStore] = []
        store = self.open()
        Base.metadata.create_all(self.engine)
        store.create_tables()
        # Emptying is far cheaper than making them again for every test.
        with self.engine.begin() as connection:
            for table in (*store.tables, *Base.metadata.tables.values()):
                connection.execute(table.delete())

    def open(self) -> SqlStore:
        store = SqlStore(self.url, **self.options)
        self._stores.append(store)
        return store

    def write(self, transaction, key: str) -> None:
        transaction.resource("session").add(Item(key=key))

    def has(self, key: str) -> bool:
        with Session(self.engine) as session:
            return session.get(Item, key) is not None

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self.engine.dispose()
