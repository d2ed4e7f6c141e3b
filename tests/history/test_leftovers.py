"""What was left open is told: by the partitions that wait for it, and by its coordinator."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from tests.history.leftovers import unfinished

KEYS = ["lists/0", "lists/1"]
OTHER_KEYS = ["others/0"]


@pytest.fixture
def bootstrap(kafka_broker):
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic("lists", 2, 1), NewTopic("others", 1, 1)]).values():
        future.result(30)
    return kafka_broker.bootstrap_servers


@pytest.fixture
def producer(bootstrap):
    with TwoPhaseProducer({"bootstrap.servers": bootstrap, "transactional.id": "left"}) as made:
        made.init_transactions()
        made.begin_transaction()
        made.produce("lists", "x", partition=1)
        made.flush()
        yield made


def test_an_open_transaction_is_found_in_its_partition_and_at_its_coordinator(bootstrap, producer):
    found = [anomaly.detail for anomaly in unfinished(bootstrap, KEYS)]

    assert found[0] == "lists/1: LSO 0, HW 1"
    assert "Ongoing" in found[1]
    assert len(found) == 2


def test_an_open_transaction_in_another_topic_is_found(bootstrap, producer):
    (anomaly,) = unfinished(bootstrap, OTHER_KEYS)

    assert anomaly.kind == "open"
    assert "left" in anomaly.detail


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_what_was_ended_is_not_open(bootstrap, producer, end):
    getattr(producer, end)()

    assert list(unfinished(bootstrap, KEYS)) == []
