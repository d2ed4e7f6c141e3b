"""A dual write in a dozen lines: rows and records are committed together, or not at all.

    python examples/dual_write.py

Starts the bundled broker and SQLite in a temporary directory; with a real broker and database only
the two addresses change.
"""

import tempfile

from reading import committed_keys
from sqlalchemy import String, create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dualwrite import DualWriter, Rollback
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    item: Mapped[str]


def place(dw: DualWriter, number: str, item: str) -> str:
    """One order on both sides; tells how it ended."""
    with dw.transaction() as tx:
        tx.session.add(Order(id=number, item=item))
        tx.produce("orders", key=number, value=item)
        if item == "out of stock":
            raise Rollback
    return f"{tx.outcome.database}, Kafka {tx.outcome.kafka}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        engine = create_engine(f"sqlite:///{folder}/orders.db")
        Base.metadata.create_all(engine)
        store = SqlStore(engine, create=True)
        servers = broker.bootstrap_servers
        with DualWriter({"bootstrap.servers": servers}, store=store, app="orders") as dw:
            print("first:", place(dw, "first", "tea"))
            print("second:", place(dw, "second", "out of stock"))
            print("third:", place(dw, "third", "coffee"))
            try:
                place(dw, "third", "again")
            except IntegrityError as error:  # the database refuses the same id twice
                print("third again:", type(error).__name__)
        with Session(engine) as session:
            print("rows:", sorted(session.scalars(select(Order.id))))
        print("records:", sorted(committed_keys(servers)))
        engine.dispose()


if __name__ == "__main__":
    main()
