"""A broker with an operator who hands out rights and a tester who uses them."""

import re
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from dualwrite.broker import Broker
from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.security.bindings import PatternType, Permission
from dualwrite.broker.security.rights import RIGHTS
from dualwrite.connection import Connection
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_acls import AclCreation, CreateAclsRequest
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from dualwrite.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from dualwrite.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.security.acl_cases import GROUP, NAMES, TOPIC, Case

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
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

    @property
    def group(self) -> DescribedGroup:
        answer = self.root.send(DescribeGroupsRequest(groups=[GROUP]), 5)
        described: DescribedGroup = answer.groups[0]
        return described

    def empty_group(self) -> None:
        """Send away whoever lost the right to leave by itself."""
        members = [MemberIdentity(member_id=member.member_id) for member in self.group.members]
        if members:
            self.root.send(LeaveGroupRequest(group_id=GROUP, members=members), 5)

    def answered(self, key: ApiKey) -> int:
        """How many requests of an API were answered."""
        text = self.broker.metrics_text().decode()
        found = re.search(
            rf'^dualwrite_request_seconds_count{{api="{key.name}"}} (\S+)', text, re.M
        )
        assert found is not None
        return int(float(found[1]))

    def close(self) -> None:
        self.root.close()
        self.tester.close()


@contextmanager
def opened_desk(folder, **more):
    users = folder / "users.toml"
    users.write_text('[users]\nroot = "root-password"\ntester = "tester-password"\n')
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:root",
        "transaction.two.phase.commit.enable": "true",
        **more,
    }
    # With an HTTP port requests are counted.
    with Broker(settings=settings, http_port=0) as broker:
        desk = Desk(broker)
        try:
            yield desk
        finally:
            desk.close()


def refusal_of(case: Case, right: tuple[Operation, ResourceType]) -> ErrorCode:
    row = next(r for r in RIGHTS[case.key] if (r.operation, r.resource_type) == right)
    assert row.refusal is not None
    return row.refusal
