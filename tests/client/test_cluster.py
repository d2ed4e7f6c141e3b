"""Finding brokers, leaders and coordinators, and finding them again."""

import pytest

from dualwrite.config import parse_config
from dualwrite.errors import ConfigurationError, KafkaError
from dualwrite.failures import AbortableError, UnsupportedByBroker
from dualwrite.flows.administration import AdminFlows
from dualwrite.flows.cluster import TRANSACTION, Cluster
from dualwrite.flows.steps import Closed, Connect, Opened, Woken
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import by_topic
from dualwrite.wire.messages import describe_producers, list_transactions
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.find_coordinator import FindCoordinatorRequest
from dualwrite.wire.messages.metadata import MetadataRequest
from tests.client.scripted import KAFKA_3, NEWEST, ScriptedCluster, flows_for, put, started


def cluster(*bootstrap):
    return Cluster(bootstrap, timeout_ms=1_000, backoff_ms=100, backoff_ms_max=1_000)


def test_every_bootstrap_server_is_tried():
    script = ScriptedCluster(nodes=3)
    script.down = {1, 2}
    found = cluster(*script.addresses.values())

    assert script.run(found, found.any_link()) == -3


def test_a_bootstrap_server_that_is_silent_does_not_hold_up_the_others():
    """The second is tried after a head start of a second, while the first is still being tried."""
    found = cluster(("silent", 1), ("alive", 2))
    flow = found.any_link()
    step = next(flow)
    assert step.actions == [Connect(-1, ("silent", 1))]
    step = flow.send(Woken(step.until_ms, []))
    assert step.actions == [Connect(-2, ("alive", 2))]
    with pytest.raises(StopIteration) as finished:
        flow.send(Woken(step.until_ms, [Opened(-2, ScriptedCluster().offer)]))

    assert finished.value.value == -2


def test_servers_that_refuse_are_tried_again_ever_more_slowly():
    script = ScriptedCluster()
    script.down, script.up_at_ms = {1}, script.now_ms + 5_000
    found = cluster(("broker-1", 9092))
    script.run(found, found.any_link())

    assert script.now_ms >= 6_000
    assert found.links


def test_a_login_that_is_refused_is_not_tried_again():
    found = cluster(("broker-1", 9092))
    flow = found.any_link()
    next(flow)
    refused = ConfigurationError("the broker refuses the login")

    with pytest.raises(ConfigurationError, match="login"):
        flow.send(Woken(1, [Closed(-1, refused)]))


def test_the_bootstrap_connection_is_used_for_the_broker_at_the_same_address():
    script = ScriptedCluster(nodes=2)
    flows = started(script)

    assert flows.cluster.link_of(1) == -1
    assert flows.cluster.link_of(2) == 2


@pytest.mark.parametrize("versions", [NEWEST, KAFKA_3, {**NEWEST, 10: (0, 2)}])
def test_a_coordinator_is_found_in_every_version(versions):
    script = ScriptedCluster(nodes=2, version=0, versions=versions)
    script.coordinator = 2
    flows = started(script)

    assert flows.cluster.known_coordinator(TRANSACTION, "orders-0") == 2
    assert len(script.requests(FindCoordinatorRequest)) == 1


def test_a_coordinator_that_is_not_available_yet():
    script = ScriptedCluster()
    script.say(FindCoordinatorRequest, 15, 14, 15)
    started(script)

    assert len(script.requests(FindCoordinatorRequest)) == 4


def test_no_right_to_find_the_coordinator():
    script = ScriptedCluster()
    script.say(FindCoordinatorRequest, 53)

    with pytest.raises(ConfigurationError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        started(script)


def test_no_right_to_the_group_only_ends_the_transaction():
    script = ScriptedCluster()
    flows = started(script)
    flows.begin()
    script.say(FindCoordinatorRequest, 30)

    with pytest.raises(AbortableError, match="GROUP_AUTHORIZATION_FAILED"):
        script.run(flows, flows.send_offsets(by_topic({("in", 0): 5}), GroupMetadata("g")))


def test_a_coordinator_that_died_is_looked_for_elsewhere():
    script = ScriptedCluster(nodes=3)
    script.coordinator = 2
    flows = started(script)
    flows.begin()
    put(script, flows, b"one")
    script.run(flows, flows.drain())
    script.down, script.coordinator = {2}, 3
    script.run(flows, flows.commit())

    assert [node for node, request, _ in script.seen if type(request) is EndTxnRequest] == [3]


@pytest.mark.parametrize("code", [29, 17])
def test_a_topic_that_is_refused(code):
    script = ScriptedCluster()
    flows = started(script)
    script.say(MetadataRequest, code)

    with pytest.raises(KafkaError) as caught:
        script.run(flows, flows.know_topic("t"))
    assert caught.value.code == code


@pytest.mark.parametrize("code", [3, 5])
def test_a_topic_that_is_being_created_is_waited_for(code):
    script = ScriptedCluster()
    flows = started(script)
    script.say(MetadataRequest, code, code, code)
    script.run(flows, flows.know_topic("t"))

    assert "t" in flows.cluster.topics


def test_a_topic_that_never_appears_is_given_up():
    script = ScriptedCluster()
    flows = started(script)
    script.say(MetadataRequest, *[3] * 100)

    with pytest.raises(KafkaError) as caught:
        script.run(flows, flows.know_topic("t"))
    assert caught.value.code == 3


def test_a_version_that_is_not_offered():
    script = ScriptedCluster(versions={**NEWEST, 10: (0, 0)})

    with pytest.raises(UnsupportedByBroker, match="FIND_COORDINATOR"):
        started(script)


def test_metadata_is_read_again_when_it_is_old():
    script = ScriptedCluster()
    flows = started(script, metadata_max_age_ms=60_000)
    for _ in range(3):
        flows.begin()
        put(script, flows, b"one")
        script.run(flows, flows.commit())
        script.now_ms += 61_000

    assert len(script.requests(MetadataRequest)) == 3


def admin_flows():
    return AdminFlows(parse_config({"bootstrap.servers": "broker-1"}, transactional=False))


def test_producers_are_asked_of_the_leader_wherever_it_is():
    script = ScriptedCluster(nodes=2, versions={**NEWEST, 61: (0, 0)})

    def answer(code):
        partition = describe_producers.PartitionResponse(partition_index=0, error_code=code)
        topic = describe_producers.TopicResponse("t", [partition])
        return describe_producers.DescribeProducersResponse(topics=[topic])

    def moved(request):
        script.leaders[0] = 2
        return answer(6)

    script.say(describe_producers.DescribeProducersRequest, moved, answer(0))
    flows = admin_flows()

    assert script.run(flows, flows.describe_producers("t", 0)) == []
    kind = describe_producers.DescribeProducersRequest
    assert [node for node, request, _ in script.seen if type(request) is kind] == [1, 2]


def test_all_brokers_are_asked_for_their_transactions():
    script = ScriptedCluster(nodes=2, versions={**NEWEST, 66: (0, 2)})

    def answer(*names, code=0):
        states = [list_transactions.TransactionState(name, 1, "Ongoing") for name in names]
        return list_transactions.ListTransactionsResponse(
            error_code=code, transaction_states=states
        )

    script.say(
        list_transactions.ListTransactionsRequest, answer(code=14), answer("b"), answer("a", "c")
    )
    flows = admin_flows()
    found = script.run(flows, flows.list_transactions([], None, None, 0))

    assert [one.transactional_id for one in found] == ["a", "b", "c"]


def test_nothing_is_created_by_looking():
    script = ScriptedCluster()
    flows = admin_flows()
    script.run(flows, flows.cluster.know_topic("t"))

    assert [r.allow_auto_topic_creation for r in script.requests(MetadataRequest)] == [False]
    flows = flows_for(script)
    script.run(flows, flows.know_topic("t"))
    assert script.requests(MetadataRequest)[-1].allow_auto_topic_creation is True
