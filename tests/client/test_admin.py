"""`TransactionAdmin` against the bundled broker, and against brokers that filter nothing."""

import pytest

from dualwrite import Fenced, KafkaError, PreparedTxnState, TransactionAdmin, TwoPhaseProducer
from dualwrite.config import parse_config
from dualwrite.connection import Connection
from dualwrite.flows.administration import AdminFlows
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.messages import describe_transactions, list_transactions
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.metadata import MetadataRequest
from tests.client.scripted import NEWEST, ScriptedCluster


@pytest.fixture
def admin(servers):
    with TransactionAdmin({"bootstrap.servers": servers}) as admin:
        yield admin


@pytest.fixture
def prepared(two_phase, name):
    """A producer with a prepared transaction of one record, in topic and id `name`."""
    with TwoPhaseProducer(two_phase) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(name, b"1", partition=0)
        producer.prepare_transaction()
        yield producer


def test_describe_shows_what_is_open(admin, prepared, name):
    described = admin.describe_transactions([name, name + "-unknown"])

    assert described[name + "-unknown"] is None
    found = described[name]
    assert (found.state, found.pair) == ("Ongoing", prepared.prepared_txn_state)
    assert found.partitions == ((name, 0),)
    assert found.is_two_phase
    assert found.start_time_ms > 0
    assert found.coordinator >= 0
    assert found.last_finished is None


def test_describe_takes_no_single_text(admin):
    with pytest.raises(TypeError):
        admin.describe_transactions("orders-0")


def test_list_filters(admin, prepared, name):
    def ids(**filters):
        return {t.transactional_id for t in admin.list_transactions(**filters)}

    assert name in ids()
    assert name in ids(states=["Ongoing"], min_duration_ms=0, id_pattern=name)
    assert name not in ids(states=["CompleteCommit"])
    assert name not in ids(min_duration_ms=10**9, states=["Ongoing"])
    assert ids(id_pattern=name[:-1]) == set()  # the whole id must match
    with pytest.raises(KafkaError) as caught:
        ids(id_pattern="(")
    assert caught.value.code == 128


def test_describe_producers(admin, prepared, name):
    (found,) = admin.describe_producers(name, 0)

    pair = prepared.prepared_txn_state
    assert (found.producer_id, found.epoch) == (pair.producer_id, pair.epoch)
    assert (found.last_sequence, found.transaction_start_offset) == (0, 0)
    with pytest.raises(KafkaError):
        admin.describe_producers(name, 55)
    with pytest.raises(KafkaError):
        admin.describe_producers(name + "-no-topic", 0)


def test_an_admin_creates_neither_topics_nor_ids(admin, servers, name):
    with pytest.raises(KafkaError):
        admin.describe_producers(name, 0)
    with pytest.raises(KafkaError) as caught:
        admin.force_terminate_transaction(name)

    assert caught.value.code == 105
    assert admin.describe_transactions([name]) == {name: None}


@pytest.mark.parametrize("commit", [True, False])
def test_a_raw_end_decides_and_the_producer_learns_it(admin, prepared, servers, name, commit):
    pair = prepared.prepared_txn_state
    after = admin.end_txn(name, pair.producer_id, pair.epoch, commit)

    assert after == PreparedTxnState(pair.producer_id, pair.epoch + 1)
    assert len(read_topic(name, servers)) == commit
    # The producer's own end is a repetition of the same decision, or a refusal of the other.
    if commit:
        assert prepared.complete_transaction(pair) == "committed"
    else:
        with pytest.raises(KafkaError) as caught:
            prepared.complete_transaction(pair)
        assert caught.value.code == 48


def test_a_raw_end_of_another_pair_is_refused(admin, prepared, name):
    pair = prepared.prepared_txn_state
    for producer_id, epoch in ((pair.producer_id, pair.epoch + 1), (pair.producer_id + 1, 0)):
        with pytest.raises(KafkaError) as caught:
            admin.end_txn(name, producer_id, epoch, commit=True)
        assert caught.value.code in (49, 90)
    prepared.commit_transaction()


def test_force_terminate_aborts_and_fences(admin, prepared, servers, name):
    admin.force_terminate_transaction(name)

    with pytest.raises(Fenced):
        prepared.commit_transaction()
    assert read_topic(name, servers) == []


def test_features_and_cluster_id(admin, servers):
    features = admin.features()

    assert features.transaction_version == 2
    assert features.offers(26, 5)
    assert not features.offers(26, 6)
    assert not features.offers(999, 0)
    with Connection(servers) as connection:
        assert connection.send(MetadataRequest(topics=[])).cluster_id == admin.cluster_id()


def test_raw_requests(servers, name):
    with Connection({"bootstrap.servers": servers}) as connection:
        response = connection.send(EndTxnRequest(name, 1, 1, True), version=5)

    assert response.error_code == 49


def test_what_an_old_broker_cannot_filter_is_filtered_here():
    versions = {**NEWEST, 66: (0, 0), 65: (0, 0)}
    script = ScriptedCluster(versions=versions)
    listed = list_transactions.ListTransactionsResponse(
        transaction_states=[
            list_transactions.TransactionState(f"orders-{n}", n, "Ongoing") for n in range(3)
        ]
    )
    script.say(list_transactions.ListTransactionsRequest, listed)
    for number, start_ms in ((0, 900_000), (1, 100)):
        state = describe_transactions.TransactionState(
            transactional_id=f"orders-{number}", transaction_start_time_ms=start_ms
        )
        script.say(
            describe_transactions.DescribeTransactionsRequest,
            describe_transactions.DescribeTransactionsResponse(transaction_states=[state]),
        )
    flows = AdminFlows(parse_config({"bootstrap.servers": "broker-1"}, transactional=False))

    found = script.run(
        flows, flows.list_transactions([], 10_000, "orders-[01]", wall_clock_ms=1_000_000)
    )

    assert [one.transactional_id for one in found] == ["orders-0", "orders-1"]
