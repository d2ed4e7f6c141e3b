"""The fixtures that users of the package get from it."""

from confluent_kafka import Producer


def test_read_committed_shows_what_is_committed_in_this_tests_broker(kafka_broker, read_committed):
    producer = Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": "orders"}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("orders", value=b"one", partition=0)
    producer.commit_transaction(10)
    producer.begin_transaction()
    producer.produce("orders", value=b"two", partition=0)
    producer.flush()

    assert [message.value() for message in read_committed("orders")] == [b"one"]

    producer.commit_transaction(10)
    assert [message.value() for message in read_committed("orders")] == [b"one", b"two"]


def test_a_broker_process_keeps_its_records_over_a_kill(kafka_broker_process, read_committed):
    producer = Producer({"bootstrap.servers": kafka_broker_process.bootstrap_servers})
    producer.produce("orders", value=b"one", partition=0)
    assert producer.flush(10) == 0

    kafka_broker_process.kill()
    kafka_broker_process.restart()

    assert [message.value() for message in read_committed("orders")] == [b"one"]
