"""Every API with every right but one: the documented code, and not a byte in the journal."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker import Broker
from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import served_apis
from dualwrite.broker.security.bindings import PatternType, Permission
from dualwrite.broker.security.rights import RIGHTS, as_markdown
from dualwrite.connection import Connection
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_acls import AclCreation, CreateAclsRequest
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from dualwrite.wire.messages.list_groups import ListGroupsRequest
from dualwrite.wire.messages.list_transactions import ListTransactionsRequest
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.security.acl_cases import CASES, GROUP, NAMES, TOPIC, Case

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# Answers that stand for "nothing was said about rights" where a name must not even be confirmed.
UNTOLD = {ErrorCode.UNKNOWN_TOPIC_ID}
TESTER = "User:tester"


def codes(message: Any) -> set[int]:
    """Every error code in a response, wherever it stands."""
    found: set[int] = set()
    if is_dataclass(message):
        for attribute in fields(message):
            value = getattr(message, attribute.name)
            if attribute.name.endswith("error_code"):
                found.add(value)
            else:
                found |= codes(value)
    elif isinstance(message, list):
        for part in message:
            found |= codes(part)
    return found


class Desk:
    """A broker with an operator who hands out rights and a tester who uses them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.root = Connection(self._config("root"))
        self.tester = Connection(self._config("tester"))
        self._create_topic()

    def _config(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": f"{user}-password",
        }

    def _create_topic(self) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        self.root.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        partition = OffsetCommitRequestPartition(committed_offset=1)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
        request = OffsetCommitRequest(
            group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics
        )
        assert codes(self.root.send(request, 8)) == {0}

    @property
    def topic_id(self) -> bytes:
        assert self.broker.node is not None
        topic = self.broker.node.topics.get(TOPIC)
        if topic is None:
            self._create_topic()
            topic = self.broker.node.topics.get(TOPIC)
        assert topic is not None
        return topic.id

    @property
    def position(self) -> int:
        assert self.broker.node is not None
        return self.broker.node.storage.position

    def grant(self, rights: set[tuple[Operation, ResourceType]]) -> None:
        everything = DeleteAclsFilter(
            resource_type_filter=ResourceType.ANY,
            pattern_type_filter=PatternType.ANY,
            resource_name_filter=None,
            principal_filter=TESTER,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        self.root.send(DeleteAclsRequest(filters=[everything]), 3)
        creations = [
            AclCreation(
                resource_type=resource,
                resource_name=NAMES[resource],
                principal=TESTER,
                host="*",
                operation=operation,
                permission_type=Permission.ALLOW,
            )
            for operation, resource in rights
        ]
        if creations:
            assert codes(self.root.send(CreateAclsRequest(creations=creations), 3)) == {0}

    def close(self) -> None:
        self.root.close()
        self.tester.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    users = tmp_path_factory.mktemp("users") / "users.toml"
    users.write_text('[users]\nroot = "root-password"\ntester = "tester-password"\n')
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:root",
        "transaction.two.phase.commit.enable": "true",
    }
    with Broker(settings=settings) as broker:
        desk = Desk(broker)
        yield desk
        desk.close()


def refusal_of(case: Case, right: tuple[Operation, ResourceType]) -> ErrorCode:
    row = next(r for r in RIGHTS[case.key] if (r.operation, r.resource_type) == right)
    assert row.refusal is not None
    return row.refusal


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


def test_every_api_has_its_row_and_its_case():
    served = {ApiKey(key) for key in served_apis()}
    tested = {case.key for case in CASES} | {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}

    assert set(RIGHTS) == served
    assert {key for key in served if RIGHTS[key]} == tested


def test_the_operators_page_shows_the_table():
    page = Path(__file__).parents[2] / "broker" / "OPERATING.md"

    assert as_markdown() in page.read_text()
