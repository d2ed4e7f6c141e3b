"""Consume orders, write invoices to a database and to Kafka, commit the offsets: one transaction.

python examples/consume_transform_produce.py
"""

import json
import tempfile
import threading

from confluent_kafka import Consumer
from reading import committed_keys
from sqlalchemy import create_engine, text

from dualwrite import DualWriter, TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from dualwrite.broker import Broker
from dualwrite.recipes.consume_transform_produce import consumer_config, run

AMOUNTS = {"anna": 30, "bela": 20, "cleo": 50}


def produce_carts(servers: str) -> None:
    producer = TwoPhaseProducer({"bootstrap.servers": servers, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    for customer, amount in AMOUNTS.items():
        producer.produce("carts", key=customer, value=json.dumps({"amount": amount}))
    producer.commit_transaction()
    producer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        servers = broker.bootstrap_servers
        engine = create_engine(f"sqlite:///{folder}/invoices.db")
        store = SqlStore(engine, create=True)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE invoices (customer TEXT, amount INTEGER)"))
        produce_carts(servers)
        stop = threading.Event()

        def invoice(tx, message) -> None:
            customer, amount = message.key().decode(), json.loads(message.value())["amount"]
            tx.session.execute(
                text("INSERT INTO invoices VALUES (:customer, :amount)"),
                {"customer": customer, "amount": amount},
            )
            tx.produce("orders", key=customer, value=str(amount))
            if customer == "cleo":
                stop.set()

        settings = {
            "bootstrap.servers": servers,
            "group.id": "invoicing",
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(consumer_config(settings))
        consumer.subscribe(["carts"])
        with DualWriter({"bootstrap.servers": servers}, store=store, app="invoicing") as dw:
            run(consumer, dw, invoice, stop=stop)
        left = consumer.committed(consumer.assignment(), timeout=20)
        consumer.close()
        with engine.connect() as connection:
            rows = [row[0] for row in connection.execute(text("SELECT customer FROM invoices"))]
        print("rows:", sorted(rows))
        print("records:", sorted(committed_keys(servers)))
        print("offsets committed:", sum(max(0, each.offset) for each in left) > 0)
        engine.dispose()


if __name__ == "__main__":
    main()
