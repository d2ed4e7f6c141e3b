"""What is sent to whom, in which version, and what each answer does to the producer."""

import pytest

from dualwrite.errors import ConfigurationError, Fenced, HeuristicAbort, InvalidTxnState
from dualwrite.failures import (
    AbortableError,
    FatalError,
    ProducerFenced,
    UnsupportedByBroker,
)
from dualwrite.flows.states import State
from dualwrite.flows.steps import Offer
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import by_topic
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from dualwrite.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from dualwrite.wire.messages.find_coordinator import FindCoordinatorRequest
from dualwrite.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from dualwrite.wire.messages.produce import ProduceRequest
from dualwrite.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.client.scripted import KAFKA_3, LOSE, REFUSE, ScriptedCluster, put, started


def versions_of(script, request_class):
    return {version for _, request, version in script.seen if type(request) is request_class}


def in_transaction(script, **settings):
    flows = started(script, **settings)
    flows.begin()
    put(script, flows, b"one")
    return flows


def abort_flushed(flows):
    """An abort that has something to end."""
    yield from flows.drain()
    yield from flows.abort()


def test_version_2_needs_two_requests_per_transaction():
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.run(flows, flows.commit())

    assert script.names() == ["InitProducerId", "Produce", "EndTxn"]
    assert versions_of(script, ProduceRequest) == {12}
    assert versions_of(script, EndTxnRequest) == {5}
    assert flows.pair == PreparedTxnState(7, 2)


def test_version_1_names_its_partitions_and_keeps_the_pair():
    script = ScriptedCluster(version=1)
    flows = in_transaction(script)
    script.run(flows, flows.commit())
    flows.begin()
    put(script, flows, b"two")
    script.run(flows, flows.commit())

    once = ["AddPartitionsToTxn", "Produce", "EndTxn"]
    assert script.names() == ["InitProducerId", *once, *once]
    assert versions_of(script, ProduceRequest) == {11}
    assert versions_of(script, EndTxnRequest) == {4}
    assert versions_of(script, AddPartitionsToTxnRequest) == {3}
    assert flows.pair == PreparedTxnState(7, 1)
    # The epoch stays, so the second transaction's sequence goes on where the first ended.
    assert [header.base_sequence for header in script.logs[0]] == [0, 1]


def test_a_broker_of_kafka_3_gets_nothing_newer_than_it_offers():
    script = ScriptedCluster(version=0, versions=KAFKA_3)
    flows = in_transaction(script)
    script.run(flows, flows.send_offsets(by_topic({("in", 0): 5}), GroupMetadata("g", 1, "m")))
    script.run(flows, flows.commit())

    for _, request, version in script.seen:
        low, high = KAFKA_3[request.schema.api_key]
        assert low <= version <= high, request


def test_offering_produce_12_without_the_finalized_feature_is_not_version_2():
    script = ScriptedCluster(version=0)
    flows = in_transaction(script)
    script.run(flows, flows.commit())

    assert flows.version == 1
    assert versions_of(script, ProduceRequest) == {11}


@pytest.mark.parametrize(("version", "versions"), [(1, None), (2, KAFKA_3)])
@pytest.mark.parametrize("how", ["two_phase", "keep"])
def test_two_phase_commit_is_refused_without_version_2_before_anything_changes(
    version, versions, how
):
    script = ScriptedCluster(version=version, versions=versions)

    with pytest.raises(UnsupportedByBroker):
        started(script, two_phase=how == "two_phase", keep=how == "keep")

    assert script.requests(InitProducerIdRequest) == []


def test_code_35_is_surfaced_so_that_another_mode_can_be_chosen():
    script = ScriptedCluster()
    script.say(InitProducerIdRequest, 35)

    with pytest.raises(UnsupportedByBroker, match="UNSUPPORTED_VERSION"):
        started(script, two_phase=True, keep=True)


@pytest.mark.parametrize("code", [53, 50])
def test_a_missing_right_is_a_configuration_error_and_init_may_be_tried_again(code):
    script = ScriptedCluster()
    script.say(InitProducerIdRequest, code)
    flows = started(ScriptedCluster())
    flows.states.state = State.UNINITIALIZED

    with pytest.raises(ConfigurationError):
        script.run(flows, flows.init(False))
    script.run(flows, flows.init(False))

    assert flows.states.state is State.READY


@pytest.mark.parametrize("code", [47, 90])
def test_a_fenced_init_is_fatal(code):
    script = ScriptedCluster()
    script.say(InitProducerIdRequest, code)

    with pytest.raises(ProducerFenced) as caught:
        started(script)

    assert isinstance(caught.value, Fenced)
    assert caught.value.fatal()


@pytest.mark.parametrize("code", [14, 51, 15, 16])
@pytest.mark.parametrize("request_class", [InitProducerIdRequest, EndTxnRequest])
def test_what_passes_is_asked_again(code, request_class):
    script = ScriptedCluster()
    script.say(request_class, code, code)
    flows = in_transaction(script)
    script.run(flows, flows.commit())

    assert len(script.requests(request_class)) == 3
    found = len(script.requests(FindCoordinatorRequest))
    assert found == (3 if code in (15, 16) else 1)


def test_a_coordinator_that_moves_is_followed():
    script = ScriptedCluster(nodes=2)
    flows = in_transaction(script)
    script.say(EndTxnRequest, lambda request: setattr(script, "coordinator", 2) or 16)
    script.run(flows, flows.commit())

    assert [node for node, request, _ in script.seen if type(request) is EndTxnRequest] == [1, 2]


def test_a_lost_end_is_repeated_with_the_same_pair():
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.say(EndTxnRequest, LOSE, REFUSE)
    script.run(flows, flows.commit())

    sent = script.requests(EndTxnRequest)
    assert len(sent) == 3
    assert {(r.producer_id, r.producer_epoch, r.committed) for r in sent} == {(7, 1, True)}


@pytest.mark.parametrize(
    ("code", "commit", "expected"),
    [
        (47, True, ProducerFenced),
        (90, False, ProducerFenced),
        (48, True, FatalError),
        (49, True, FatalError),
        (53, True, FatalError),
        (120, True, AbortableError),
        (59, True, AbortableError),
        (120, False, FatalError),
        (12345, True, FatalError),
    ],
)
def test_codes_of_end_txn(code, commit, expected):
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.say(EndTxnRequest, code)

    with pytest.raises(expected) as caught:
        script.run(flows, flows.commit() if commit else abort_flushed(flows))

    assert caught.value.code == code
    is_abortable = expected is AbortableError
    assert flows.states.state is (State.ABORTABLE_ERROR if is_abortable else State.FATAL_ERROR)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (30, AbortableError),
        (22, AbortableError),
        (25, AbortableError),
        (82, AbortableError),
        (113, AbortableError),
        (47, ProducerFenced),
        (53, FatalError),
        (43, FatalError),
    ],
)
def test_codes_of_txn_offset_commit(code, expected):
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.say(TxnOffsetCommitRequest, code)

    with pytest.raises(expected):
        script.run(flows, flows.send_offsets(by_topic({("in", 0): 5}), GroupMetadata("g")))


@pytest.mark.parametrize("code", [14, 51, 3, 15, 16, 7])
def test_codes_of_txn_offset_commit_that_are_tried_again(code):
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.say(TxnOffsetCommitRequest, code)
    script.run(flows, flows.send_offsets(by_topic({("in", 0): 5}), GroupMetadata("g")))

    assert len(script.requests(TxnOffsetCommitRequest)) == 2


def test_offsets_join_a_version_2_transaction_by_themselves():
    script = ScriptedCluster()
    flows = started(script)
    flows.begin()
    group = GroupMetadata("g", 3, "member", "instance")
    script.run(flows, flows.send_offsets(by_topic({("in", 1): 5}), group))
    script.run(flows, flows.commit())

    assert script.names() == ["InitProducerId", "TxnOffsetCommit", "EndTxn"]
    (sent,) = script.requests(TxnOffsetCommitRequest)
    assert (sent.generation_id_or_member_epoch, sent.member_id) == (3, "member")
    assert sent.group_instance_id == "instance"


def test_offsets_are_announced_in_a_version_1_transaction():
    script = ScriptedCluster(version=0)
    flows = started(script)
    flows.begin()
    script.run(flows, flows.send_offsets(by_topic({("in", 1): 5}), GroupMetadata("g")))
    script.run(flows, flows.commit())

    assert script.names() == ["InitProducerId", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
    assert versions_of(script, TxnOffsetCommitRequest) == {4}
    assert len(script.requests(AddOffsetsToTxnRequest)) == 1


def test_an_empty_transaction_sends_nothing():
    script = ScriptedCluster()
    flows = started(script)
    for end in (flows.commit, flows.abort):
        flows.begin()
        script.run(flows, end())

    assert script.names() == ["InitProducerId"]


def test_preparing_an_empty_transaction_gives_the_empty_state_and_ends_it():
    """T-2: its pair would also be the next transaction's."""
    script = ScriptedCluster()
    flows = started(script, two_phase=True)
    flows.begin()

    state = script.run(flows, flows.prepare())

    assert str(state) == ""
    assert flows.states.state is State.READY
    assert script.run(flows, flows.complete(state)) == "none"
    assert script.names() == ["InitProducerId"]


def test_the_pair_is_known_while_the_records_are_under_way():
    script = ScriptedCluster()
    flows = in_transaction(script, two_phase=True)

    pair = script.run(flows, flows.start_prepare())

    assert script.names() == ["InitProducerId", "Produce"]
    assert flows.states.state is State.IN_TRANSACTION
    assert script.run(flows, flows.prepare()) == pair == PreparedTxnState(7, 1)
    assert script.names() == ["InitProducerId", "Produce"]


def test_an_empty_transaction_has_no_pair_to_write_down():
    script = ScriptedCluster()
    flows = started(script, two_phase=True)
    flows.begin()

    assert not script.run(flows, flows.start_prepare()).has_transaction
    assert not script.run(flows, flows.prepare()).has_transaction


def test_records_that_could_not_be_sent_yet_have_their_pair_all_the_same():
    script = ScriptedCluster()
    flows = in_transaction(script, two_phase=True)
    flows.cluster.forget_links(ConnectionResetError())

    assert script.run(flows, flows.start_prepare()) == PreparedTxnState(7, 1)
    assert script.run(flows, flows.prepare()) == PreparedTxnState(7, 1)


def test_a_transaction_with_only_offsets_is_not_empty():
    script = ScriptedCluster()
    flows = started(script, two_phase=True)
    flows.begin()
    script.run(flows, flows.send_offsets(by_topic({("in", 1): 5}), GroupMetadata("g")))

    assert script.run(flows, flows.prepare()) == PreparedTxnState(7, 1)


def recovered(script, ongoing=(7, 5), **last):
    response = InitProducerIdResponse(
        producer_id=7,
        producer_epoch=6,
        ongoing_txn_producer_id=ongoing[0],
        ongoing_txn_producer_epoch=ongoing[1],
        **last,
    )
    script.say(InitProducerIdRequest, lambda request: response)
    return started(script, two_phase=True, keep=True)


@pytest.mark.parametrize(
    ("text", "completion", "committed"),
    [("7:5", "committed", True), ("7:4", "aborted", False), ("", "aborted", False)],
)
def test_completing_after_recovery_really_ends_the_transaction(text, completion, committed):
    """The commit carries the new pair, and is not skipped because this process sent nothing."""
    script = ScriptedCluster()
    flows = recovered(script)

    assert flows.prepared == PreparedTxnState(7, 5)
    assert script.run(flows, flows.complete(PreparedTxnState.parse(text))) == completion
    (sent,) = script.requests(EndTxnRequest)
    assert (sent.producer_id, sent.producer_epoch, sent.committed) == (7, 6, committed)
    assert flows.prepared == PreparedTxnState.NONE


def test_completing_when_nothing_was_open_is_a_success():
    script = ScriptedCluster()
    flows = recovered(script, ongoing=(-1, -1))

    assert script.run(flows, flows.complete(PreparedTxnState(7, 5))) == "none"
    assert script.requests(EndTxnRequest) == []


@pytest.mark.parametrize("cause", ["forced", "timeout", "fenced"])
def test_an_abort_by_others_is_not_taken_for_completed(cause):
    script = ScriptedCluster()
    last = {"last_producer_id": 7, "last_producer_epoch": 5, "last_outcome": "abort"}
    flows = recovered(script, ongoing=(-1, -1), last_cause=cause, **last)

    with pytest.raises(HeuristicAbort, match=cause):
        script.run(flows, flows.complete(PreparedTxnState(7, 5)))
    assert script.run(flows, flows.complete(PreparedTxnState(7, 4))) == "none"
    flows.begin()


@pytest.mark.parametrize(
    "last",
    [
        {"last_outcome": "commit", "last_cause": "client"},
        {"last_outcome": "abort", "last_cause": "client"},
    ],
)
def test_an_end_by_the_client_is_no_heuristic(last):
    script = ScriptedCluster()
    flows = recovered(script, ongoing=(-1, -1), last_producer_id=7, last_producer_epoch=5, **last)

    assert script.run(flows, flows.complete(PreparedTxnState(7, 5))) == "none"


def test_complete_is_refused_in_an_open_transaction():
    script = ScriptedCluster()
    flows = in_transaction(script, two_phase=True)

    with pytest.raises(InvalidTxnState):
        script.run(flows, flows.complete(PreparedTxnState(7, 1)))


def test_prepare_is_refused_without_two_phase_commit():
    script = ScriptedCluster()
    flows = in_transaction(script)

    with pytest.raises(InvalidTxnState, match=r"two\.phase"):
        script.run(flows, flows.prepare())
    assert flows.states.state is State.IN_TRANSACTION


def test_prepare_reports_a_record_that_failed():
    script = ScriptedCluster()
    flows = in_transaction(script, two_phase=True)
    script.say(ProduceRequest, 87)

    with pytest.raises(AbortableError, match="INVALID_RECORD"):
        script.run(flows, flows.prepare())
    with pytest.raises(AbortableError):
        script.run(flows, flows.commit())
    script.run(flows, flows.abort())

    assert flows.states.state is State.READY


@pytest.mark.parametrize("again", [True, False])
def test_after_an_unanswered_complete_only_the_same_one_may_be_made(again):
    script = ScriptedCluster()
    flows = recovered(script)
    flow = flows.complete(PreparedTxnState(7, 5))
    next(flow)
    flow.close()  # the call timed out

    assert flows.states.state is State.COMMITTING
    assert flows.prepared == PreparedTxnState(7, 5)
    if again:
        assert script.run(flows, flows.complete(PreparedTxnState(7, 5))) == "committed"
    else:
        with pytest.raises(InvalidTxnState):
            script.run(flows, flows.complete(PreparedTxnState(7, 4)))
        with pytest.raises(InvalidTxnState):
            script.run(flows, flows.abort())


def test_an_abort_after_a_failed_record_takes_a_new_epoch_before_version_2():
    script = ScriptedCluster(version=1)
    flows = in_transaction(script)
    script.say(ProduceRequest, 87)
    with pytest.raises(AbortableError):
        script.run(flows, flows.commit())
    script.run(flows, flows.abort())
    flows.begin()
    put(script, flows, b"two")
    script.run(flows, flows.commit())

    bump = script.requests(InitProducerIdRequest)[1]
    assert (bump.producer_id, bump.producer_epoch) == (7, 1)
    assert script.logs[0][-1].base_sequence == 0


def test_an_abort_that_the_coordinator_never_heard_of_is_no_end_before_version_2():
    script = ScriptedCluster(version=1)
    flows = in_transaction(script)
    script.say(AddPartitionsToTxnRequest, 29)
    with pytest.raises(AbortableError):
        script.run(flows, flows.commit())
    script.say(EndTxnRequest, 48)
    script.run(flows, flows.abort())

    assert flows.states.state is State.READY
    assert len(script.requests(InitProducerIdRequest)) == 2


def test_a_cluster_that_moves_to_version_2_is_followed_after_the_transaction():
    script = ScriptedCluster(version=1)
    flows = in_transaction(script)
    script.offer = Offer(script.offer.versions, 2, {"transaction.version": 2})
    script.say(EndTxnRequest, REFUSE)
    script.run(flows, flows.commit())

    assert flows.version == 2
    assert len(script.requests(InitProducerIdRequest)) == 2


def test_an_end_without_the_next_pair_takes_a_new_one():
    """Without it the next transaction would have the pair of this one."""
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.say(EndTxnRequest, EndTxnResponse())
    script.run(flows, flows.commit())

    assert flows.pair == PreparedTxnState(7, 2)
    assert len(script.requests(InitProducerIdRequest)) == 2


def test_an_init_without_a_pair_is_fatal():
    script = ScriptedCluster()
    script.say(InitProducerIdRequest, InitProducerIdResponse(producer_id=-1))

    with pytest.raises(FatalError):
        started(script)


def test_a_new_epoch_between_transactions_names_the_present_pair():
    script = ScriptedCluster(version=1)
    flows = started(script)
    script.run(flows, flows.bump())

    sent = script.requests(InitProducerIdRequest)[1]
    assert (sent.producer_id, sent.producer_epoch) == (7, 1)
    assert flows.pair == PreparedTxnState(7, 2)


def test_flushing_a_transaction_gives_its_pair_and_leaves_it_open():
    script = ScriptedCluster()
    flows = in_transaction(script)

    assert script.run(flows, flows.flush_transaction()) == PreparedTxnState(7, 1)
    put(script, flows, b"more")
    script.run(flows, flows.commit())
    assert sum(h.record_count for h in script.logs[0]) == 2


def test_misuse_sends_nothing():
    script = ScriptedCluster()
    flows = started(script)
    before = len(script.seen)
    for flow in (flows.init(False), flows.commit(), flows.abort(), flows.prepare()):
        with pytest.raises(InvalidTxnState):
            script.run(flows, flow)
    flows.begin()
    with pytest.raises(InvalidTxnState):
        flows.begin()

    assert len(script.seen) == before


def test_a_transaction_whose_call_was_interrupted_can_only_be_aborted():
    """A record may be in it half, or not at all: nobody may commit what nobody knows."""
    script = ScriptedCluster()
    flows = in_transaction(script)
    flows.interrupted()

    with pytest.raises(AbortableError):
        script.run(flows, flows.commit())
    script.run(flows, flows.abort())

    assert [request.committed for request in script.requests(EndTxnRequest)] in ([], [False])
    assert flows.states.state is State.READY


def test_an_end_that_was_interrupted_can_be_asked_for_again():
    script = ScriptedCluster()
    flows = in_transaction(script)
    script.run(flows, flows.drain())
    flow = flows.commit()
    next(flow)
    flow.close()
    flows.interrupted()
    script.run(flows, flows.commit())

    assert {request.committed for request in script.requests(EndTxnRequest)} == {True}
    assert flows.states.state is State.READY
