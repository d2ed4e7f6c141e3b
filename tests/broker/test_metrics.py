"""What Prometheus sees: KIP-98's figures, KIP-939's age of the oldest open transaction, the LSO."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker


@pytest.fixture
def broker():
    with Broker(settings={"http.port": 0}) as running:
        yield running


def figures(broker):
    """Samples by name and labels."""
    found = {}
    for family in text_string_to_metric_families(broker.metrics_text().decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_prepared_transaction_is_seen_by_age_and_by_what_it_holds_back(broker):
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "orders-0",
            "transaction.two.phase.commit.enable": True,
        }
    )
    producer.init_transactions(keep_prepared_txn=True)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce("orders", b"x", partition=0)
    state = producer.prepare_transaction()
    place = (("partition", "0"), ("topic", "orders"))

    held = figures(broker)
    producer.complete_transaction(state)
    producer.close()
    done = figures(broker)

    assert held["dualwrite_open_transactions", (("two_phase", "true"),)] == 1
    assert held["dualwrite_active_transaction_open_time_max_seconds", ()] >= 0
    assert held["dualwrite_in_doubt_seconds", ()] >= 0
    assert held["dualwrite_lso_lag_records", place] == 3
    assert held["dualwrite_active_transactional_ids", ()] == 1
    assert done["dualwrite_open_transactions", (("two_phase", "true"),)] == 0
    assert done["dualwrite_active_transaction_open_time_max_seconds", ()] == 0
    assert done["dualwrite_lso_lag_records", place] == 0
    assert done["dualwrite_last_stable_offset", place] == 4


def test_group_lag_is_counted_against_what_may_be_read(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(5):
        producer.produce("orders", b"x", partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 2)], asynchronous=False)
    consumer.close()

    labels = (("group", "readers"), ("partition", "0"), ("topic", "orders"))
    assert figures(broker)["dualwrite_group_lag_records", labels] == 3


def test_fsyncs_and_requests_are_timed(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("orders", b"x", partition=0)
    producer.flush()

    found = figures(broker)

    assert found["dualwrite_fsync_seconds_count", ()] > 0
    assert found["dualwrite_request_seconds_count", (("api", "PRODUCE"),)] == 1
    assert found["dualwrite_connections", ()] > 0
    assert found["dualwrite_live_producer_ids", ()] == 0
