"""Which code each transaction request gets, version by version (KIP-98, 447, 890, 939).

Sent by kio over a bare socket: no client library stands between the bytes and the broker.
"""

import pytest

NONE = 0
UNKNOWN_TOPIC = 3
ILLEGAL_GENERATION = 22
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER = 25
UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
OUT_OF_ORDER = 45
INVALID_EPOCH = 47
INVALID_STATE = 48
INVALID_MAPPING = 49
INVALID_TIMEOUT = 50
NOT_AUTHORIZED = 53
NOT_ATTEMPTED = 55
FENCED = 90
NOT_FOUND = 105
ABORTABLE = 120
BAD_PATTERN = 128

V6 = pytest.param(6, marks=pytest.mark.two_phase)
V6_FENCED = pytest.param(6, FENCED, marks=pytest.mark.two_phase)
INIT = range(6)
INIT_WITH_A_PAIR = [3, 4, 5, V6]
ADD_PARTITIONS = range(4)
ADD_OFFSETS = range(5)
OLD_END = range(5)
COMMIT_OFFSETS = range(6)


def older(pair):
    return pair[0], pair[1] - 1


# InitProducerId


@pytest.mark.parametrize("version", INIT)
@pytest.mark.parametrize("timeout", [0, -1, 900_001, 2_147_483_647])
def test_init_with_a_timeout_out_of_range(talk, version, timeout):
    """T-9: the sentinel of two-phase commit is no timeout that an ordinary producer may ask for."""
    assert talk.init(version, timeout=timeout)["error_code"] == INVALID_TIMEOUT


@pytest.mark.parametrize("version", INIT)
def test_init_with_an_empty_id(talk, version):
    assert talk.init(version, id="")["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("version", INIT)
def test_init_without_an_id_gives_a_fresh_producer(talk, version):
    first, second = talk.init(version, id=None), talk.init(version, id=None)

    assert (first["error_code"], first["producer_epoch"]) == (NONE, 0)
    assert first["producer_id"] != second["producer_id"]


@pytest.mark.parametrize("version", INIT_WITH_A_PAIR)
@pytest.mark.parametrize("pair", [(5, -1), (-1, 5)])
def test_init_with_half_a_pair(talk, version, pair):
    assert talk.init(version, pair=pair)["error_code"] == INVALID_REQUEST


@pytest.mark.parametrize("version", INIT_WITH_A_PAIR)
def test_init_with_a_pair_for_an_unknown_id_succeeds(talk, version):
    """P9: some clients send (0, 0) on their first init."""
    assert talk.init(version, pair=(0, 0))["error_code"] == NONE


@pytest.mark.parametrize(
    ("version", "code"), [(3, INVALID_EPOCH), (4, FENCED), (5, FENCED), V6_FENCED]
)
def test_init_with_a_stale_pair_is_fenced(talk, version, code):
    first = talk.begin()
    talk.begin()
    talk.begin()

    assert talk.init(version, pair=first)["error_code"] == code


@pytest.mark.parametrize("version", INIT_WITH_A_PAIR)
def test_init_repeated_with_its_pair_gives_the_same_answer(talk, version):
    pair = talk.begin()
    first = talk.init(version, pair=pair)
    again = talk.init(version, pair=pair)

    assert first["error_code"] == again["error_code"] == NONE
    assert (first["producer_id"], first["producer_epoch"]) == (pair[0], pair[1] + 1)
    assert (again["producer_id"], again["producer_epoch"]) == (pair[0], pair[1] + 1)


@pytest.mark.two_phase
@pytest.mark.parametrize("flags", [{"enable2_pc": True}, {"keep_prepared_txn": True}])
def test_two_phase_needs_transaction_version_2(old_broker, new_talk, flags):
    """T-1: without an epoch per transaction the pair does not name one."""
    assert new_talk(old_broker).init(6, **flags)["error_code"] == UNSUPPORTED_VERSION


def test_requests_of_version_2_need_a_cluster_that_has_moved_on(old_broker, new_talk):
    """At level 0 Kafka's records have no room for what version 2 must remember (KIP-890)."""
    talk = new_talk(old_broker)
    pair = talk.begin()

    assert talk.produce(pair, 12) == UNSUPPORTED_VERSION
    assert talk.commit_offsets(pair, 5) == UNSUPPORTED_VERSION
    assert talk.end(pair, 5, commit=False)[0] == UNSUPPORTED_VERSION
    assert talk.end(pair, 5, commit=True)[0] == INVALID_STATE  # nothing began
    assert talk.add_partitions(pair, 3) == [NONE]
    assert talk.end(pair, 5, commit=True)[0] == UNSUPPORTED_VERSION
    assert talk.produce(pair, 11) == NONE
    assert talk.end(pair, 4, commit=True)[0] == NONE


@pytest.mark.two_phase
def test_two_phase_switched_off(forbidding_broker, new_talk):
    talk = new_talk(forbidding_broker)

    assert talk.init(6, enable2_pc=True)["error_code"] == NOT_AUTHORIZED
    assert talk.init(6)["error_code"] == NONE


@pytest.mark.two_phase
def test_two_phase_ignores_the_timeout(talk):
    assert talk.init(6, enable2_pc=True, timeout=2_000_000_000)["error_code"] == NONE


@pytest.mark.two_phase
def test_keep_prepared_tells_both_pairs_and_fences_the_old_one(talk):
    answer = talk.init(6, enable2_pc=True)
    pair = (answer["producer_id"], answer["producer_epoch"])
    assert talk.produce(pair, 12) == NONE
    kept = talk.init(6, enable2_pc=True, keep_prepared_txn=True)
    client = (kept["producer_id"], kept["producer_epoch"])

    assert (kept["ongoing_txn_producer_id"], kept["ongoing_txn_producer_epoch"]) == pair
    assert client == (pair[0], pair[1] + 1)
    # The matrix of a kept transaction: its old pair may do nothing, the new one may only end it.
    assert talk.produce(pair, 12, sequence=1) == INVALID_EPOCH
    assert talk.produce(client, 12) == INVALID_STATE
    assert talk.add_partitions(client, 3) == [INVALID_STATE]
    assert talk.add_partitions(pair, 3) == [FENCED]
    assert talk.add_offsets(client, 4) == INVALID_STATE
    assert talk.commit_offsets(client, 5) == INVALID_STATE
    assert talk.commit_offsets(pair, 5) == INVALID_EPOCH
    assert talk.end(pair, 5, commit=True)[0] == FENCED
    assert talk.end(client, 4, commit=True)[0] == INVALID_STATE
    assert talk.init(6, keep_prepared_txn=True, pair=pair)["error_code"] == FENCED
    code, after = talk.end(client, 5, commit=True)
    assert (code, after) == (NONE, (client[0], client[1] + 1))
    assert talk.end(client, 5, commit=True) == (NONE, after)
    assert talk.end(client, 5, commit=False)[0] == INVALID_STATE


# AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("version", ADD_PARTITIONS)
def test_add_partitions_codes(talk, version):
    pair = talk.begin()
    fenced = FENCED if version >= 2 else INVALID_EPOCH

    assert talk.add_partitions(pair, version, id="nobody") == [INVALID_MAPPING]
    assert talk.add_partitions((pair[0] + 1, pair[1]), version) == [INVALID_MAPPING]
    assert talk.add_partitions((pair[0], pair[1] + 1), version) == [fenced]
    assert talk.add_partitions(pair, version, [("topic", 0), ("no-such", 0)]) == [
        NOT_ATTEMPTED, UNKNOWN_TOPIC,
    ]  # fmt: skip
    assert talk.add_partitions(pair, version) == [NONE]


@pytest.mark.parametrize("version", ADD_OFFSETS)
def test_add_offsets_codes(talk, version):
    pair = talk.begin()
    fenced = FENCED if version >= 2 else INVALID_EPOCH

    assert talk.add_offsets(pair, version, id="nobody") == INVALID_MAPPING
    assert talk.add_offsets((pair[0] + 1, pair[1]), version) == INVALID_MAPPING
    assert talk.add_offsets((pair[0], pair[1] + 1), version) == fenced
    assert talk.add_offsets(pair, version) == NONE


# EndTxn


@pytest.mark.parametrize("version", OLD_END)
def test_end_codes_of_transaction_version_1(talk, version):
    pair = talk.begin()
    fenced = FENCED if version >= 2 else INVALID_EPOCH
    assert talk.end(pair, version, commit=True, id="nobody")[0] == INVALID_MAPPING
    assert talk.end((pair[0] + 1, pair[1]), version, commit=True)[0] == INVALID_MAPPING
    assert talk.end((pair[0], pair[1] + 1), version, commit=True)[0] == fenced
    assert talk.end(pair, version, commit=True)[0] == INVALID_STATE  # nothing began
    assert talk.end(pair, version, commit=False)[0] == INVALID_STATE
    assert talk.add_partitions(pair, 3) == [NONE]
    assert talk.end(pair, version, commit=True)[0] == NONE
    assert talk.end(pair, version, commit=True)[0] == NONE  # a retry
    assert talk.end(pair, version, commit=False)[0] == INVALID_STATE
    assert talk.add_partitions(pair, 3) == [NONE]
    assert talk.end(pair, version, commit=False)[0] == NONE
    assert talk.end(pair, version, commit=False)[0] == NONE
    assert talk.end(pair, version, commit=True)[0] == INVALID_STATE


def test_end_codes_of_transaction_version_2(talk):
    pair = talk.begin()
    assert talk.end(pair, 5, commit=True)[0] == INVALID_STATE  # nothing began
    code, bumped = talk.end(pair, 5, commit=False)  # an empty abort moves the epoch
    assert (code, bumped) == (NONE, (pair[0], pair[1] + 1))
    assert talk.produce(bumped, 12) == NONE
    code, after = talk.end(bumped, 5, commit=True)
    assert (code, after) == (NONE, (bumped[0], bumped[1] + 1))
    assert talk.end(bumped, 5, commit=True) == (NONE, after)  # a retry gets the same pair
    assert talk.end(bumped, 5, commit=False)[0] == INVALID_STATE
    assert talk.end(pair, 5, commit=True)[0] == FENCED  # a delayed one of the transaction before
    assert talk.end(after, 5, commit=True)[0] == INVALID_STATE
    assert talk.end((-1, -1), 5, commit=True)[0] != NONE


def test_delayed_end_never_ends_the_next_transaction(talk):
    """KAFKA-17754: the reason for transaction version 2."""
    pair = talk.begin()
    talk.produce(pair, 12)
    _, second = talk.end(pair, 5, commit=True)
    assert talk.produce(second, 12) == NONE

    assert talk.end(pair, 5, commit=False)[0] == FENCED
    assert talk.end(pair, 5, commit=True)[0] == FENCED
    assert talk.end(second, 5, commit=True)[0] == NONE


# Produce


@pytest.mark.parametrize(
    ("version", "code"), [*((v, INVALID_STATE) for v in range(3, 11)), (11, ABORTABLE)]
)
def test_produce_to_a_partition_that_was_not_added(talk, version, code):
    assert talk.produce(talk.begin(), version) == code


@pytest.mark.parametrize("version", [3, 7, 9, 11, 12])
def test_produce_codes(talk, version):
    pair = talk.begin()
    if version < 12:
        assert talk.add_partitions(pair, 3) == [NONE]
    assert talk.produce(pair, version) == NONE
    assert talk.produce(pair, version) == NONE  # a duplicate is a success
    assert talk.produce(pair, version, sequence=7) == OUT_OF_ORDER
    assert talk.produce(older((pair[0], pair[1])), version) != NONE
    assert talk.produce(pair, version, sequence=1, id=None) == NOT_AUTHORIZED


@pytest.mark.parametrize("version", [11, 12])
def test_produce_of_a_fenced_producer(talk, version):
    pair = talk.begin()
    talk.add_partitions(pair, 3)
    assert talk.produce(pair, 11) == NONE
    talk.end(pair, 4, commit=True)
    talk.begin()

    assert talk.produce(pair, version, sequence=1) == INVALID_EPOCH


def test_produce_of_an_unknown_producer_id(talk):
    pair = talk.begin()

    assert talk.produce((pair[0] + 500_000, 0), 12) == INVALID_MAPPING


# TxnOffsetCommit


@pytest.mark.parametrize(
    ("version", "code"), [*((v, INVALID_STATE) for v in range(4)), (4, ABORTABLE), (5, NONE)]
)
def test_offsets_of_a_group_that_was_not_added(talk, version, code):
    assert talk.commit_offsets(talk.begin(), version) == code


@pytest.mark.parametrize("version", COMMIT_OFFSETS)
def test_commit_offsets_codes(talk, version):
    pair = talk.begin()
    assert talk.add_offsets(pair, 3) == NONE
    assert talk.add_offsets(pair, 3, group="other") == NONE
    assert talk.commit_offsets((pair[0], pair[1] + 1), version) == INVALID_EPOCH
    assert talk.commit_offsets(pair, version, group="") == INVALID_GROUP_ID
    if version >= 3:
        unknown = {"generation_id_or_member_epoch": 4, "generation_id": 4, "member_id": "nobody"}
        assert talk.commit_offsets(pair, version, group="other", **unknown) == ILLEGAL_GENERATION
    assert talk.commit_offsets(pair, version) == NONE


# What operators ask


def test_describe_and_list_codes(talk):
    states = talk.raw.ask(65, 0, transactional_ids=["nobody", ""])["transaction_states"]
    assert [state["error_code"] for state in states] == [NOT_FOUND, INVALID_REQUEST]
    listed = talk.raw.ask(
        66, 2, state_filters=["Sleeping"], producer_id_filters=[], duration_filter=-1,
        transactional_id_pattern=None,
    )  # fmt: skip
    assert (listed["error_code"], listed["unknown_state_filters"]) == (NONE, ["Sleeping"])
    bad = talk.raw.ask(
        66, 2, state_filters=[], producer_id_filters=[], duration_filter=-1,
        transactional_id_pattern="(",
    )  # fmt: skip
    assert bad["error_code"] == BAD_PATTERN
    producers = talk.raw.ask(61, 0, topics=[{"name": "no-such", "partition_indexes": [0]}])
    assert producers["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC


@pytest.mark.two_phase
@pytest.mark.parametrize("version", [1, 2])
def test_marker_for_an_open_transaction_is_refused(talk, version):
    """T-17: an admin's marker would tear it apart behind the coordinator's back."""
    pair = talk.begin()
    assert talk.produce(pair, 12) == NONE
    answer = talk.raw.ask(
        27, version,
        markers=[{
            "producer_id": pair[0], "producer_epoch": pair[1], "transaction_result": False,
            "topics": [{"name": "topic", "partition_indexes": [0]}], "coordinator_epoch": 99,
            "transaction_version": 0,
        }],
    )  # fmt: skip

    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == INVALID_STATE
    assert talk.end(pair, 5, commit=True)[0] == NONE
