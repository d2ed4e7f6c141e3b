"""A producer that sends some payments twice, and a consumer that pays each once.

python examples/idempotent_consumer.py
"""

import tempfile

from confluent_kafka import Consumer
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.recipes.idempotent_consumer import SeenMessages, message_id_of

SENT = ["rent", "power", "rent", "water", "power", "rent"]


def produce_payments(servers: str) -> None:
    producer = TwoPhaseProducer({"bootstrap.servers": servers, "transactional.id": "bank"})
    producer.init_transactions()
    producer.begin_transaction()
    for payment in SENT:
        producer.produce("payments", value="100", headers={"message-id": payment})
    producer.commit_transaction()
    producer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        engine = create_engine(f"sqlite:///{folder}/payments.db")
        seen = SeenMessages(engine, create=True)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (what TEXT)"))
        produce_payments(broker.bootstrap_servers)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "payments",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["payments"])
        for _ in SENT:
            message = consumer.poll(30)
            if message is None or message.error():
                raise RuntimeError("the broker did not answer")
            payment = message_id_of(message)
            with Session(engine) as session, session.begin():
                if seen.first_time(session, "payments", payment):
                    session.execute(text("INSERT INTO paid VALUES (:what)"), {"what": payment})
            consumer.commit(message, asynchronous=False)  # after the effect: twice is harmless
        consumer.close()
        with engine.connect() as connection:
            print("paid:", sorted(row[0] for row in connection.execute(text("SELECT * FROM paid"))))
        engine.dispose()


if __name__ == "__main__":
    main()
