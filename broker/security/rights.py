"""Which right each API asks for, and what is answered without it: the one table of access control.

The code can't leave it: `Call.may` refuses to ask for a right that is not in the API's row. The tests
take every row apart (all rights but one), and `broker/OPERATING.md` shows it, compared by a test. So
what is enforced, what is tested and what is written are one thing (compare CVE-2026-41115).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode


class Right(NamedTuple):
    """One right that an API asks for.

    `refusal` is the answer without it; None where things that may not be seen are left out instead.
    `when` says in which case it is asked for; "or" that it can stand in for the right before it.
    """

    operation: Operation
    resource_type: ResourceType
    refusal: ErrorCode | None
    when: str = ""


_NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NO_ID: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _topic(operation: Operation, when: str = "") -> Right:
    return Right(operation, ResourceType.TOPIC, _NO_TOPIC, when)


def _group(operation: Operation, when: str = "") -> Right:
    return Right(operation, ResourceType.GROUP, _NO_GROUP, when)


def _cluster(operation: Operation, when: str = "") -> Right:
    return Right(operation, ResourceType.CLUSTER, _NO_CLUSTER, when)


def _id(operation: Operation, when: str = "") -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID, _NO_ID, when)


def _hidden(resource_type: ResourceType, when: str = "left out of the answer") -> Right:
    return Right(Operation.DESCRIBE, resource_type, None, when)


O = Operation  # noqa: E741 - the table below is read by its columns

RIGHTS: Final[Mapping[ApiKey, tuple[Right, ...]]] = {
    ApiKey.PRODUCE: (_topic(O.WRITE), _id(O.WRITE, "any batch is transactional")),
    ApiKey.FETCH: (
        _topic(O.READ),
        Right(O.CLUSTER_ACTION, ResourceType.CLUSTER, _NO_TOPIC, "as a replica"),
    ),
    ApiKey.LIST_OFFSETS: (_topic(O.DESCRIBE),),
    ApiKey.METADATA: (
        _topic(O.DESCRIBE),
        Right(O.CREATE, ResourceType.CLUSTER, _NO_TOPIC, "it creates the topic"),
        Right(O.CREATE, ResourceType.TOPIC, _NO_TOPIC, "or"),
    ),
    ApiKey.OFFSET_COMMIT: (_group(O.READ), _topic(O.READ)),
    ApiKey.OFFSET_FETCH: (_group(O.DESCRIBE), _topic(O.DESCRIBE)),
    ApiKey.FIND_COORDINATOR: (_group(O.DESCRIBE, "key type 0"), _id(O.DESCRIBE, "key type 1")),
    ApiKey.JOIN_GROUP: (_group(O.READ),),
    ApiKey.HEARTBEAT: (_group(O.READ),),
    ApiKey.LEAVE_GROUP: (_group(O.READ),),
    ApiKey.SYNC_GROUP: (_group(O.READ),),
    ApiKey.DESCRIBE_GROUPS: (_group(O.DESCRIBE),),
    ApiKey.LIST_GROUPS: (
        _hidden(ResourceType.CLUSTER, "sees every group"),
        _hidden(ResourceType.GROUP, "or: left out of the answer"),
    ),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        Right(O.CREATE, ResourceType.CLUSTER, _NO_TOPIC),
        Right(O.CREATE, ResourceType.TOPIC, _NO_TOPIC, "or"),
        _topic(O.DESCRIBE_CONFIGS, "to be told its settings"),
    ),
    ApiKey.DELETE_TOPICS: (_topic(O.DELETE), _topic(O.DESCRIBE, "by id, to be told the name")),
    ApiKey.DELETE_RECORDS: (_topic(O.DELETE),),
    ApiKey.INIT_PRODUCER_ID: (
        _id(O.WRITE, "with a transactional id"),
        _id(O.TWO_PHASE_COMMIT, "enable2Pc, or it would abort a two-phase transaction"),
        Right(O.ALTER, ResourceType.CLUSTER, _NO_ID, "or, to abort a two-phase transaction"),
        _cluster(O.IDEMPOTENT_WRITE, "without a transactional id"),
        Right(O.WRITE, ResourceType.TOPIC, _NO_CLUSTER, "or: on any topic"),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_topic(O.DESCRIBE),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (_id(O.WRITE), _topic(O.WRITE, "all or nothing")),
    ApiKey.ADD_OFFSETS_TO_TXN: (_id(O.WRITE), _group(O.READ)),
    ApiKey.END_TXN: (_id(O.WRITE),),
    ApiKey.WRITE_TXN_MARKERS: (_cluster(O.ALTER), _cluster(O.CLUSTER_ACTION, "or")),
    ApiKey.TXN_OFFSET_COMMIT: (_id(O.WRITE), _group(O.READ), _topic(O.READ)),
    ApiKey.DESCRIBE_ACLS: (_cluster(O.DESCRIBE),),
    ApiKey.CREATE_ACLS: (_cluster(O.ALTER),),
    ApiKey.DELETE_ACLS: (_cluster(O.ALTER),),
    ApiKey.DESCRIBE_CONFIGS: (
        _topic(O.DESCRIBE_CONFIGS, "of a topic"),
        _group(O.DESCRIBE_CONFIGS, "of a group"),
        _cluster(O.DESCRIBE_CONFIGS, "of the broker"),
    ),
    ApiKey.ALTER_CONFIGS: (
        _topic(O.ALTER_CONFIGS, "of a topic"),
        _group(O.ALTER_CONFIGS, "of a group"),
        _cluster(O.ALTER_CONFIGS, "of the broker"),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        _topic(O.ALTER_CONFIGS, "of a topic"),
        _group(O.ALTER_CONFIGS, "of a group"),
        _cluster(O.ALTER_CONFIGS, "of the broker"),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (_cluster(O.DESCRIBE),),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (_topic(O.ALTER),),
    ApiKey.DELETE_GROUPS: (_group(O.DELETE),),
    ApiKey.ELECT_LEADERS: (_cluster(O.ALTER),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_cluster(O.ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (_cluster(O.DESCRIBE),),
    ApiKey.OFFSET_DELETE: (_group(O.DELETE), _topic(O.READ)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_cluster(O.DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_cluster(O.ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(O.DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(O.ALTER),),
    ApiKey.DESCRIBE_QUORUM: (_cluster(O.DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (_cluster(O.ALTER),),
    ApiKey.DESCRIBE_CLUSTER: (),
    ApiKey.DESCRIBE_PRODUCERS: (_topic(O.READ),),
    ApiKey.DESCRIBE_TRANSACTIONS: (_id(O.DESCRIBE), _hidden(ResourceType.TOPIC)),
    ApiKey.LIST_TRANSACTIONS: (_hidden(ResourceType.TRANSACTIONAL_ID),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        _group(O.READ),
        _topic(O.DESCRIBE, "subscribed by name; by pattern it is left out"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        _group(O.DESCRIBE),
        _topic(O.DESCRIBE, "of every member's topics"),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (_cluster(O.DESCRIBE_CONFIGS),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_topic(O.DESCRIBE),),
}

ASKED: Final[Mapping[int, frozenset[tuple[Operation, ResourceType]]]] = {
    key: frozenset((right.operation, right.resource_type) for right in rights)
    for key, rights in RIGHTS.items()
}


def as_markdown() -> str:
    """The table as `broker/OPERATING.md` shows it."""
    lines = ["| API | right | without it |", "| --- | --- | --- |"]
    for key, rights in sorted(RIGHTS.items()):
        name = key.name.replace("_", " ").title().replace(" ", "")
        for right in rights or (None,):
            if right is None:
                lines.append(f"| {name} | none | |")
                continue
            what = f"{right.operation.name} on {right.resource_type.name}"
            what += f" ({right.when})" if right.when else ""
            answer = (
                "" if right.refusal is None else f"{right.refusal.name} ({right.refusal.value})"
            )
            lines.append(f"| {name} | {what} | {answer} |")
    return "\n".join(lines)
