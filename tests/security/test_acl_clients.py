"""The matrix again with clients as they are: each request that one can send, without each of its rights.

The broker's own count shows that the client has really sent the request. What no client can send, or
does not tell the error of, is named with its reason in `RAW_ONLY`; `test_acl_matrix` has it as raw frames.
"""

import logging

import pytest

from dualwrite.broker.acl import Operation as O
from dualwrite.broker.acl import ResourceType as R
from tests.security.acl_cases import CASES, Needed
from tests.security.aiokafka_calls import OF_AIOKAFKA
from tests.security.client_calls import (
    READ_GROUP,
    READ_TOPIC,
    SEE_GROUP,
    SEE_TOPIC,
    WRITE_ID,
    Applicant,
    told,
)
from tests.security.confluent_calls import OF_CONFLUENT
from tests.security.desk import REFUSALS, opened_desk, refusal_of
from tests.security.kafka_python_calls import OF_KAFKA_PYTHON

pytestmark = pytest.mark.slow

CALLS = [*OF_CONFLUENT, *OF_KAFKA_PYTHON, *OF_AIOKAFKA]

RAW_ONLY: dict[tuple[str, Needed], str] = {
    ("fetch-replica", (O.CLUSTER_ACTION, R.CLUSTER)): "no client can pose as a replica",
    ("fetch-replica", READ_TOPIC): "no client can pose as a replica",
    ("init_producer_id-2pc", WRITE_ID): "of KIP-939, which none of the three has",
    ("init_producer_id-2pc", (O.TWO_PHASE_COMMIT, R.TRANSACTIONAL_ID)): "the same",
    ("offset_for_leader_epoch", SEE_TOPIC): "sent only after the leader has changed",
    ("txn_offset_commit", WRITE_ID): "AddOffsetsToTxn is refused before it is sent",
    ("txn_offset_commit", READ_GROUP): "AddOffsetsToTxn is refused before it is sent",
    ("describe_configs-group", (O.DESCRIBE_CONFIGS, R.GROUP)): "kafka-python hides the code",
    ("describe_log_dirs", (O.DESCRIBE, R.CLUSTER)): "kafka-python hides the code",
    ("describe_client_quotas", (O.DESCRIBE_CONFIGS, R.CLUSTER)): "none of the three has it",
    ("alter_client_quotas", (O.ALTER_CONFIGS, R.CLUSTER)): "none of the three has it",
    ("consumer_group_describe", SEE_GROUP): "FindCoordinator is refused before it is sent",
}
"""What only raw frames can show, and why."""

CASE = {str(case): case for case in CASES}


def rights_of(call):
    return CASE[call.case].needs if call.without is None else call.without


# A client that deletes the topic for the others comes last.
ORDERED = sorted(CALLS, key=lambda call: call.case == "delete_topics")
MISSING = [
    pytest.param(call, right, id=f"{call}-without-{right[0].name}-{right[1].name}")
    for call in ORDERED
    for right in rights_of(call)
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    # Long enough to take a right away while a member waits for others.
    settings = {"group.initial.rebalance.delay.ms": "300"}
    with opened_desk(tmp_path_factory.mktemp("users"), **settings) as desk:
        yield desk


@pytest.fixture
def desk(opened, caplog):
    # aiokafka logs what it raises anyway.
    caplog.set_level(logging.CRITICAL, "aiokafka")
    opened.empty_group()
    assert opened.topic_id
    return opened


def tell(desk, call, at_first, at_last):
    """The codes that the client tells, and how many of the requests were answered."""
    key = CASE[call.case].key
    desk.grant(at_first if call.staged else at_last)
    before = desk.answered(key)
    tester = Applicant(
        desk.broker.bootstrap_servers,
        lose=lambda: desk.grant(at_last),
        sent=lambda: desk.answered(key),
        group_state=lambda: desk.group.group_state,
    )
    codes = told(call.run(tester))
    return codes, desk.answered(key) - before


@pytest.mark.parametrize(("call", "right"), MISSING)
def test_a_client_is_told_which_right_it_lacks(desk, call, right):
    case = CASE[call.case]
    rights = {*case.needs, *call.also}

    codes, sent = tell(desk, call, rights, rights - {right})

    assert sent > 0
    assert codes & REFUSALS == {refusal_of(case, right)}, codes


@pytest.mark.parametrize("call", ORDERED, ids=str)
def test_a_client_with_all_its_rights_is_served(desk, call):
    case = CASE[call.case]
    rights = {*case.needs, *call.also, *call.beyond}

    codes, sent = tell(desk, call, rights, rights)

    assert sent > 0
    assert not codes & {refusal_of(case, right) for right in case.needs}


def test_nothing_is_raw_without_a_reason():
    by_clients = {(call.case, right) for call in CALLS for right in rights_of(call)}
    everything = {(name, right) for name, case in CASE.items() for right in case.needs}

    assert everything - by_clients == set(RAW_ONLY)
    assert all(RAW_ONLY.values())


@pytest.mark.parametrize(
    ("client", "cases"), [("confluent-kafka", 30), ("kafka-python", 35), ("aiokafka", 19)]
)
def test_each_client_has_its_share(client, cases):
    """So that a table that has lost its rows is not taken for a full one."""
    assert len({call.case for call in CALLS if call.client == client}) >= cases
