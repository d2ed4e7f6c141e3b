"""The requests that kafka-python sends."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.broker.kafka_python import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tests.security.acl_cases import GROUP, ID, TOPIC
from tests.security.client_calls import (
    CONFIGURED,
    KAFKA_PYTHON,
    READ_TOPIC,
    SECONDS,
    SEE_GROUP,
    SEE_ID,
    SEE_TOPIC,
    WRITE_ID,
    Applicant,
    ClientCall,
    attempt,
    until,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import admin as kp_admin
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as KpPartition


def _kp(call: Callable[[Any], Any]) -> Callable[[Applicant], Any]:
    def run(tester: Applicant) -> Any:
        client = KafkaAdminClient(**tester.python())
        try:
            return attempt(lambda: call(client))
        finally:
            client.close()

    return run


def _kp_producing(use: Callable[[Applicant, Any], Any], **more: Any) -> Callable[[Applicant], Any]:
    def run(tester: Applicant) -> Any:
        producer = KafkaProducer(**tester.python(**more))
        try:
            return attempt(lambda: use(tester, producer))
        finally:
            producer.close(timeout=1)

    return run


def _kp_reading(use: Callable[[Applicant, Any], Any], **more: Any) -> Callable[[Applicant], Any]:
    def run(tester: Applicant) -> Any:
        consumer = KafkaConsumer(
            **tester.python(group_id=GROUP, auto_offset_reset="earliest", **more)
        )
        try:
            return attempt(lambda: use(tester, consumer))
        finally:
            consumer.close(autocommit=False)

    return run


_PARTITION = KpPartition(TOPIC, 0)


def _kp_fetch(tester: Applicant, consumer: Any) -> Any:
    consumer.assign([_PARTITION])
    consumer.seek(_PARTITION, 0)
    return until(lambda: consumer.poll(timeout_ms=100))


def _kp_end(tester: Applicant, consumer: Any) -> Any:
    consumer.end_offsets([_PARTITION])
    tester.lose()
    return consumer.end_offsets([_PARTITION])


def _kp_join(tester: Applicant, consumer: Any) -> Any:
    consumer.subscribe([TOPIC])
    return until(lambda: consumer.poll(timeout_ms=100) or consumer.assignment())


def _kp_transaction(tester: Applicant, producer: Any) -> Any:
    producer.init_transactions()
    producer.begin_transaction()
    tester.lose()
    return producer.send(TOPIC, b"x").get(SECONDS)


def _kp_offsets(tester: Applicant, producer: Any) -> Any:
    producer.init_transactions()
    producer.begin_transaction()
    tester.lose()
    return producer.send_offsets_to_transaction({_PARTITION: OffsetAndMetadata(1, "", -1)}, GROUP)


def _kp_describe_transactions(tester: Applicant) -> Any:
    def twice(client: Any) -> Any:
        attempt(lambda: client.describe_transactions([ID]))
        tester.lose()
        return client.describe_transactions([ID])

    return _kp(twice)(tester)


def _kp_alter(kind: str, incremental: bool, client: Any) -> Any:
    wanted = [kp_admin.ConfigResource(kp_admin.ConfigResourceType[kind.upper()], *CONFIGURED[kind])]
    return client.alter_configs(
        wanted, validate_only=True, raise_on_unknown=False, incremental=incremental
    )


_KP_PATTERN = kp_admin.ResourcePattern(kp_admin.ResourceType.TOPIC, "x")
_KP_ACL = kp_admin.ACL(
    "User:x", "*", kp_admin.ACLOperation.READ, kp_admin.ACLPermissionType.ALLOW, _KP_PATTERN
)
_KP_FILTER = kp_admin.ACLFilter(
    "User:x", "*", kp_admin.ACLOperation.ANY, kp_admin.ACLPermissionType.ANY,
    kp_admin.ResourcePatternFilter(
        kp_admin.ResourceType.TOPIC, "x", kp_admin.ACLResourcePatternType.LITERAL
    ),
)  # fmt: skip

OF_KAFKA_PYTHON = [
    ClientCall(
        "produce", KAFKA_PYTHON,
        _kp_producing(
            lambda t, p: p.send(TOPIC, b"x").get(SECONDS), enable_idempotence=False
        ),
        (SEE_TOPIC,),
    ),
    ClientCall("fetch", KAFKA_PYTHON, _kp_reading(_kp_fetch), (SEE_TOPIC, SEE_GROUP)),
    ClientCall("list_offsets", KAFKA_PYTHON, _kp_reading(_kp_end), (), True),
    ClientCall("metadata", KAFKA_PYTHON, _kp(lambda a: a.describe_topics([TOPIC]))),
    ClientCall(
        "offset_commit", KAFKA_PYTHON,
        _kp(lambda a: a.alter_group_offsets(GROUP, {_PARTITION: OffsetAndMetadata(1, "", -1)})),
        (SEE_GROUP,),
    ),
    ClientCall(
        "offset_fetch", KAFKA_PYTHON, _kp(lambda a: a.list_group_offsets({GROUP: [_PARTITION]})),
        (), False, (SEE_TOPIC,),
    ),
    ClientCall(
        "find_coordinator-group", KAFKA_PYTHON, _kp(lambda a: a.describe_groups([GROUP]))
    ),
    ClientCall(
        "find_coordinator-id", KAFKA_PYTHON,
        _kp_producing(lambda t, p: p.init_transactions(), transactional_id=ID),
        beyond=(WRITE_ID,),
    ),
    ClientCall("join_group", KAFKA_PYTHON, _kp_reading(_kp_join), (SEE_GROUP, READ_TOPIC)),
    ClientCall(
        "leave_group", KAFKA_PYTHON,
        _kp(
            lambda a: a.remove_group_members(
                GROUP, [kp_admin.MemberToRemove(member_id="nobody")], group_coordinator_id=1
            )
        ),
    ),
    ClientCall(
        "describe_groups", KAFKA_PYTHON,
        _kp(lambda a: a.describe_groups([GROUP], group_coordinator_id=1)),
    ),
    ClientCall(
        "create_topics", KAFKA_PYTHON, _kp(lambda a: a.create_topics([kp_admin.NewTopic(TOPIC, 1, 1)]))
    ),
    ClientCall(
        "delete_records", KAFKA_PYTHON, _kp(lambda a: a.delete_records({_PARTITION: 0})), (SEE_TOPIC,)
    ),
    ClientCall(
        "init_producer_id", KAFKA_PYTHON,
        _kp_producing(lambda t, p: p.init_transactions(), transactional_id=ID), (SEE_ID,),
    ),
    ClientCall(
        "init_producer_id-idempotent", KAFKA_PYTHON,
        _kp_producing(lambda t, p: p.send(TOPIC, b"x").get(SECONDS), enable_idempotence=True),
        (SEE_TOPIC,),
    ),
    ClientCall(
        "add_partitions_to_txn", KAFKA_PYTHON, _kp_producing(_kp_transaction, transactional_id=ID),
        (SEE_TOPIC, SEE_ID), True,
    ),
    ClientCall(
        "add_offsets_to_txn", KAFKA_PYTHON, _kp_producing(_kp_offsets, transactional_id=ID),
        (SEE_GROUP, SEE_ID, READ_TOPIC), True,
    ),
    ClientCall(
        "txn_offset_commit", KAFKA_PYTHON, _kp_producing(_kp_offsets, transactional_id=ID),
        (SEE_GROUP, SEE_ID), True, (READ_TOPIC,),
    ),
    ClientCall(
        "write_txn_markers", KAFKA_PYTHON,
        _kp(lambda a: a.abort_transaction(kp_admin.AbortTransactionSpec(_PARTITION, 5, 0))),
        (SEE_TOPIC,),
    ),
    ClientCall("describe_acls", KAFKA_PYTHON, _kp(lambda a: a.describe_acls(_KP_FILTER))),
    ClientCall("create_acls", KAFKA_PYTHON, _kp(lambda a: a.create_acls([_KP_ACL]))),
    ClientCall("delete_acls", KAFKA_PYTHON, _kp(lambda a: a.delete_acls([_KP_FILTER]))),
    *(
        ClientCall(
            f"{name}-{kind}", KAFKA_PYTHON,
            _kp(partial(_kp_alter, kind, incremental)),
        )
        for name, incremental in (("alter_configs", False), ("incremental_alter_configs", True))
        for kind in CONFIGURED
    ),
    ClientCall(
        "create_partitions", KAFKA_PYTHON,
        _kp(lambda a: a.create_partitions({TOPIC: kp_admin.NewPartitions(9)}, validate_only=True)),
    ),
    ClientCall(
        "delete_groups", KAFKA_PYTHON,
        _kp(lambda a: a.delete_groups([GROUP], group_coordinator_id=1)),
    ),
    ClientCall("elect_leaders", KAFKA_PYTHON, _kp(lambda a: a.elect_leaders(0, None))),
    ClientCall(
        "alter_partition_reassignments", KAFKA_PYTHON,
        _kp(lambda a: a.alter_partition_reassignments({_PARTITION: [1]})),
    ),
    ClientCall(
        "list_partition_reassignments", KAFKA_PYTHON,
        _kp(lambda a: a.list_partition_reassignments()),
    ),
    ClientCall(
        "offset_delete", KAFKA_PYTHON,
        _kp(lambda a: a.delete_group_offsets(GROUP, [_PARTITION], group_coordinator_id=1)),
    ),
    ClientCall(
        "describe_user_scram_credentials", KAFKA_PYTHON,
        _kp(lambda a: a.describe_user_scram_credentials()),
    ),
    ClientCall("describe_quorum", KAFKA_PYTHON, _kp(lambda a: a.describe_metadata_quorum())),
    ClientCall("update_features", KAFKA_PYTHON, _kp(lambda a: a.update_features({"no-such": 1}))),
    ClientCall(
        "describe_producers", KAFKA_PYTHON, _kp(lambda a: a.describe_producers([_PARTITION])),
        (SEE_TOPIC,),
    ),
    ClientCall("describe_transactions", KAFKA_PYTHON, _kp_describe_transactions, (), True),
    ClientCall(
        "list_config_resources", KAFKA_PYTHON, _kp(lambda a: a.list_config_resources())
    ),
    ClientCall(
        "describe_topic_partitions", KAFKA_PYTHON,
        _kp(lambda a: a.describe_topic_partitions([TOPIC])),
    ),
    ClientCall("delete_topics", KAFKA_PYTHON, _kp(lambda a: a.delete_topics([TOPIC]))),
]  # fmt: skip
