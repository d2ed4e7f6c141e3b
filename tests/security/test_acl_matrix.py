"""Every API with every right but one: the documented code, and not a byte in the journal."""

from pathlib import Path

import pytest

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import served_apis
from dualwrite.broker.security.rights import RIGHTS, as_markdown
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from dualwrite.wire.messages.list_groups import ListGroupsRequest
from dualwrite.wire.messages.list_transactions import ListTransactionsRequest
from tests.security.acl_cases import CASES, GROUP, TOPIC
from tests.security.desk import REFUSALS, codes, opened_desk, refusal_of

# Answers that stand for "nothing was said about rights" where a name must not even be confirmed.
UNTOLD = {ErrorCode.UNKNOWN_TOPIC_ID}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    with opened_desk(tmp_path_factory.mktemp("users")) as desk:
        yield desk


MISSING = [
    pytest.param(
        case, version, right, id=f"{case}-v{version}-without-{right[0].name}-{right[1].name}"
    )
    for case in CASES
    for version in case.versions
    for right in case.needs
]
NOTHING = [
    pytest.param(case, version, id=f"{case}-v{version}")
    for case in CASES
    for version in case.versions
]
ALTERNATIVES = [
    pytest.param(case, right, id=f"{case}-{right[0].name}-{right[1].name}")
    for case in CASES
    for right in case.alternatives
]


@pytest.mark.parametrize(("case", "version", "right"), MISSING)
def test_one_missing_right_is_told_and_changes_nothing(desk, case, version, right):
    request = case.build(version, desk.topic_id)
    desk.grant(set(case.needs) - {right})
    before = desk.position

    answered = codes(desk.tester.send(request, version))

    expected = refusal_of(case, right)
    assert expected in answered or answered & UNTOLD
    assert answered & REFUSALS <= {expected}
    assert desk.position == before


@pytest.mark.parametrize(("case", "version"), NOTHING)
def test_without_any_right_nothing_is_served(desk, case, version):
    request = case.build(version, desk.topic_id)
    desk.grant(set())
    before = desk.position

    answered = codes(desk.tester.send(request, version))

    assert answered & (REFUSALS | UNTOLD)
    assert desk.position == before


@pytest.mark.parametrize(("case", "version"), NOTHING)
def test_with_its_rights_and_no_others_it_is_served(desk, case, version):
    request = case.build(version, desk.topic_id)
    desk.grant(set(case.needs))

    answered = codes(desk.tester.send(request, version))

    assert not answered & REFUSALS


@pytest.mark.parametrize(("case", "right"), ALTERNATIVES)
def test_another_right_stands_in(desk, case, right):
    request = case.build(case.versions[-1], desk.topic_id)
    desk.grant({right})

    assert not codes(desk.tester.send(request, case.versions[-1])) & REFUSALS


def test_lists_leave_out_what_may_not_be_seen(desk):
    desk.grant(set())
    assert desk.tester.send(ListGroupsRequest(), 5).groups == []
    assert desk.tester.send(ListTransactionsRequest(), 2).transaction_states == []

    desk.grant({(Operation.DESCRIBE, ResourceType.GROUP)})
    assert [g.group_id for g in desk.tester.send(ListGroupsRequest(), 5).groups] == [GROUP]


def test_a_new_topics_settings_are_told_to_who_may_see_them(desk):
    """KIP-525: the answer to CreateTopics must not be a way around DescribeConfigs."""
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=5000)
    assert codes(desk.root.send(deletion, 6)) == {0}
    topic = CreatableTopic(name=TOPIC, num_partitions=3, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000, validate_only=True)
    may_create = (Operation.CREATE, ResourceType.TOPIC)

    desk.grant({may_create, (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)})
    (told,) = desk.tester.send(request, 7).topics
    desk.grant({may_create})
    (untold,) = desk.tester.send(request, 7).topics
    (old,) = desk.tester.send(request, 4).topics

    assert (told.error_code, told.topic_config_error_code, told.num_partitions) == (0, 0, 3)
    assert {config.name for config in told.configs} >= {"cleanup.policy", "retention.ms"}
    assert (untold.error_code, old.error_code) == (0, 0)
    assert untold.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (untold.configs, untold.num_partitions, untold.replication_factor) == ([], -1, -1)
    assert desk.topic_id  # made again for the others


def test_every_api_has_its_row_and_its_case():
    served = {ApiKey(key) for key in served_apis()}
    tested = {case.key for case in CASES} | {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}

    assert set(RIGHTS) == served
    assert {key for key in served if RIGHTS[key]} == tested


def test_the_operators_page_shows_the_table():
    page = Path(__file__).parents[2] / "broker" / "OPERATING.md"

    assert as_markdown() in page.read_text()
