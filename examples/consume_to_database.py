"""Consume into a database exactly once: data and position are one transaction.

    python examples/consume_to_database.py

The consumer fails in the middle of a batch and starts again; every order is booked once.
"""

import tempfile
import threading

from sqlalchemy import create_engine, text

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.recipes.consume_to_db import DatabaseConsumer

ORDERS = 20


class PowerCut(Exception):
    pass


def produce_orders(servers: str) -> None:
    producer = TwoPhaseProducer({"bootstrap.servers": servers, "transactional.id": "source"})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(ORDERS):
        producer.produce("orders", key=str(number), value="created")
    producer.commit_transaction()
    producer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        engine = create_engine(f"sqlite:///{folder}/billing.db")
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE bookings (number INTEGER)"))
        produce_orders(broker.bootstrap_servers)
        stop = threading.Event()
        has_failed: list[bool] = []

        def book(session, message) -> None:
            number = int(message.key())
            session.execute(text("INSERT INTO bookings VALUES (:n)"), {"n": number})
            if number == 7 and not has_failed:
                has_failed.append(True)
                raise PowerCut
            if number == ORDERS - 1:
                stop.set()

        config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"}
        while not stop.is_set():
            try:
                with DatabaseConsumer(config, engine, ["orders"], create=True) as consumer:
                    consumer.run(book, stop=stop, batch_size=5)
            except PowerCut:
                print("failed: in the middle of a batch, starting again")
        with engine.connect() as connection:
            rows = sorted(row[0] for row in connection.execute(text("SELECT * FROM bookings")))
        print("booked:", len(rows), "once each:", rows == list(range(ORDERS)))
        engine.dispose()


if __name__ == "__main__":
    main()
