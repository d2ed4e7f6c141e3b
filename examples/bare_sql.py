"""KIP-939's own recipe with an SQL database: a bare producer and a state store, nothing else.

    python examples/bare_sql.py

Starts the bundled broker and SQLite in a temporary directory. The first order is written as
usual. The second writer stops after the database's COMMIT, before it has told Kafka; the third
stops before COMMIT. Recovery then does in Kafka what the database says.
"""

import tempfile

from reading import committed_keys
from sqlalchemy import create_engine, text

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker

TRANSACTIONAL_ID = "orders-0"


def producer_for(servers: str) -> TwoPhaseProducer:
    return TwoPhaseProducer(
        {
            "bootstrap.servers": servers,
            "transactional.id": TRANSACTIONAL_ID,
            "transaction.two.phase.commit.enable": True,
        }
    )


def recover(producer: TwoPhaseProducer, store: SqlStore) -> tuple[int, str]:
    """Take the id over, and end what its last owner left open as the database decided."""
    fence = store.claim(TRANSACTIONAL_ID).fence
    producer.init_transactions(keep_prepared_txn=True)
    state = store.recall(TRANSACTIONAL_ID, fence)  # read again: decide only from this read
    return fence, producer.complete_transaction(state)


def write_order(producer, store, engine, fence, order, stop_after="") -> None:
    """One order into both. `stop_after` leaves as a crash at that point would."""
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": order})
        producer.begin_transaction()
        producer.produce("orders", key=order.encode(), value=b"created")
        state = producer.prepare_transaction()
        store.remember(connection, TRANSACTIONAL_ID, state, fence)
        if stop_after == "prepare":
            return
        connection.commit()  # the decision
        if stop_after == "commit":
            return
    producer.complete_transaction(state)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        engine = create_engine(f"sqlite:///{folder}/orders.db")
        store = SqlStore(engine, create=True)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY)"))

        for order, stop_after in (("first", ""), ("second", "commit"), ("third", "prepare")):
            producer = producer_for(broker.bootstrap_servers)
            fence, outcome = recover(producer, store)
            print(f"recovery before {order}: {outcome}")
            write_order(producer, store, engine, fence, order, stop_after)
            producer.close()

        producer = producer_for(broker.bootstrap_servers)
        _, outcome = recover(producer, store)
        print(f"recovery at the end: {outcome}")
        producer.close()
        with engine.connect() as connection:
            rows = [row[0] for row in connection.execute(text("SELECT id FROM orders"))]
        print("rows:   ", sorted(rows))
        print("records:", sorted(committed_keys(broker.bootstrap_servers)))
        engine.dispose()


if __name__ == "__main__":
    main()
