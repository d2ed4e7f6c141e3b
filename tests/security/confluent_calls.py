"""The requests that confluent-kafka sends."""

from collections.abc import Callable
from functools import partial
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from tests.security.acl_cases import GROUP, ID, TOPIC
from tests.security.client_calls import (
    CONFLUENT,
    READ_TOPIC,
    SECONDS,
    SEE_GROUP,
    SEE_ID,
    SEE_TOPIC,
    WRITE_ID,
    WRITE_TOPIC,
    Applicant,
    ClientCall,
    answered,
    attempt,
    until,
)


def _futures(call: Callable[[ck_admin.AdminClient], Any]) -> Callable[[Applicant], Any]:
    def run(tester: Applicant) -> Any:
        client = ck_admin.AdminClient(tester.librdkafka())
        futures = attempt(lambda: call(client))
        if not isinstance(futures, dict):
            futures = {None: futures}
        return [attempt(partial(future.result, SECONDS)) for future in futures.values()]

    return run


def _ck_produce(tester: Applicant) -> Any:
    said: list[Any] = []
    producer = ck.Producer(tester.librdkafka())
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: said.append(error))
    producer.flush(SECONDS)
    return said


def _ck_idempotent(tester: Applicant) -> Any:
    producer = ck.Producer(tester.librdkafka(enable_idempotence=True))
    producer.produce(TOPIC, b"x")
    return attempt(lambda: producer.flush(SECONDS))


def _ck_init(tester: Applicant) -> Any:
    producer = ck.Producer(tester.librdkafka(transactional_id=ID))
    return attempt(lambda: producer.init_transactions(SECONDS))


def _in_transaction(*steps: Callable[[ck.Producer, list[Any]], Any]) -> Callable[[Applicant], Any]:
    """Take the right away before the last step."""

    def run(tester: Applicant) -> Any:
        said: list[Any] = []
        producer = ck.Producer(tester.librdkafka(transactional_id=ID))
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for step in steps[:-1]:
            step(producer, said)
        tester.lose()
        said.append(attempt(lambda: steps[-1](producer, said)))
        return said

    return run


def _send(producer: ck.Producer, said: list[Any]) -> None:
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: said.append(error))
    producer.flush(SECONDS)


def _send_and_commit(producer: ck.Producer, said: list[Any]) -> None:
    producer.produce(TOPIC, b"x")
    producer.commit_transaction(SECONDS)


def _send_offsets(tester_config: dict[str, Any], producer: ck.Producer) -> None:
    consumer = ck.Consumer(tester_config | {"group.id": GROUP})
    try:
        producer.send_offsets_to_transaction(
            [ck.TopicPartition(TOPIC, 0, 1)], consumer.consumer_group_metadata(), SECONDS
        )
    finally:
        consumer.close()


def _ck_offsets(tester: Applicant) -> Any:
    producer = ck.Producer(tester.librdkafka(transactional_id=ID))
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    tester.lose()
    return attempt(lambda: _send_offsets(tester.librdkafka(), producer))


def _commit(producer: ck.Producer, said: list[Any]) -> None:
    producer.commit_transaction(SECONDS)


def _reading(
    use: Callable[[Applicant, ck.Consumer], Any], **more: Any
) -> Callable[[Applicant], Any]:
    def run(tester: Applicant) -> Any:
        consumer = ck.Consumer(
            tester.librdkafka(
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                enable_auto_commit=False,
                **more,
            )
        )
        try:
            return use(tester, consumer)
        finally:
            consumer.close()

    return run


def _polled(consumer: ck.Consumer) -> Any:
    message = consumer.poll(0.1)
    return message and (message.error() or "a record")


def _ck_fetch(tester: Applicant, consumer: ck.Consumer) -> Any:
    consumer.assign([ck.TopicPartition(TOPIC, 0, 0)])
    return until(lambda: _polled(consumer))


def _ck_watermarks(tester: Applicant, consumer: ck.Consumer) -> Any:
    def ask() -> Any:
        return consumer.get_watermark_offsets(ck.TopicPartition(TOPIC, 0), SECONDS, cached=False)

    ask()
    tester.lose()
    return attempt(ask)


def _ck_committed(tester: Applicant, consumer: ck.Consumer) -> Any:
    def ask() -> Any:
        return [p.error for p in consumer.committed([ck.TopicPartition(TOPIC, 0)], SECONDS)]

    ask()
    tester.lose()
    return answered(ask)


def _joined(consumer: ck.Consumer) -> Any:
    message = consumer.poll(0.1)
    return (message and message.error()) or consumer.assignment()


def _ck_join(tester: Applicant, consumer: ck.Consumer) -> Any:
    consumer.subscribe([TOPIC])
    return until(lambda: _joined(consumer))


def _ck_sync(tester: Applicant, consumer: ck.Consumer) -> Any:
    """The right goes while the broker waits for more members, between JoinGroup and SyncGroup."""
    consumer.subscribe([TOPIC])
    until(lambda: consumer.poll(0.05) or tester.group_state() == "PreparingRebalance")
    tester.lose()
    return until(lambda: _joined(consumer))


_BINDING = ck_admin.AclBinding(
    ck_admin.ResourceType.TOPIC, "x", ck_admin.ResourcePatternType.LITERAL, "User:x", "*",
    ck_admin.AclOperation.READ, ck_admin.AclPermissionType.ALLOW,
)  # fmt: skip
_BINDINGS = ck_admin.AclBindingFilter(
    ck_admin.ResourceType.TOPIC, "x", ck_admin.ResourcePatternType.LITERAL, "User:x", "*",
    ck_admin.AclOperation.ANY, ck_admin.AclPermissionType.ANY,
)  # fmt: skip


def _ck_config(kind: str, **entries: str) -> list[ck_admin.ConfigResource]:
    of_topic = kind == "topic"
    resource = ck_admin.ConfigResource(
        ck_admin.ResourceType.TOPIC if of_topic else ck_admin.ResourceType.BROKER,
        TOPIC if of_topic else "1",
        incremental_configs=[
            ck_admin.ConfigEntry(
                name.replace("_", "."), value,
                incremental_operation=ck_admin.AlterConfigOpType.SET,
            )
            for name, value in entries.items()
        ] or None,
    )  # fmt: skip
    return [resource]


def _ck_describe(kind: str, client: ck_admin.AdminClient) -> Any:
    return client.describe_configs(_ck_config(kind))


def _ck_alter(kind: str, key: str, client: ck_admin.AdminClient) -> Any:
    wanted = _ck_config(kind, **{key: "1000000"})
    return client.incremental_alter_configs(wanted, validate_only=True)


_OFFSETS = ck.ConsumerGroupTopicPartitions(GROUP, [ck.TopicPartition(TOPIC, 0, 1)])
_ASKED = ck.ConsumerGroupTopicPartitions(GROUP, [ck.TopicPartition(TOPIC, 0)])

OF_CONFLUENT = [
    ClientCall("produce", CONFLUENT, _ck_produce, (SEE_TOPIC,)),
    ClientCall(
        "produce-transactional", CONFLUENT, _in_transaction(_send, _send),
        (SEE_TOPIC, SEE_ID), True,
    ),
    ClientCall("fetch", CONFLUENT, _reading(_ck_fetch), (SEE_TOPIC, SEE_GROUP)),
    ClientCall("list_offsets", CONFLUENT, _reading(_ck_watermarks), (), True),
    ClientCall(
        "metadata", CONFLUENT,
        lambda t: [
            v.error for v in ck_admin.AdminClient(t.librdkafka()).list_topics(TOPIC, SECONDS).topics.values()
        ],
    ),
    ClientCall(
        "offset_commit", CONFLUENT, _futures(lambda a: a.alter_consumer_group_offsets([_OFFSETS])),
        (SEE_GROUP,),
    ),
    ClientCall("offset_fetch", CONFLUENT, _reading(_ck_committed), (), True),
    ClientCall(
        "find_coordinator-group", CONFLUENT,
        _futures(lambda a: a.list_consumer_group_offsets([_ASKED])),
    ),
    ClientCall("find_coordinator-id", CONFLUENT, _ck_init, beyond=(WRITE_ID,)),
    ClientCall("join_group", CONFLUENT, _reading(_ck_join), (SEE_GROUP, READ_TOPIC)),
    ClientCall("sync_group", CONFLUENT, _reading(_ck_sync), (SEE_GROUP, READ_TOPIC), True),
    ClientCall(
        "create_topics", CONFLUENT,
        _futures(lambda a: a.create_topics([ck_admin.NewTopic(TOPIC, 1, 1)])),
    ),
    ClientCall(
        "delete_records", CONFLUENT,
        _futures(lambda a: a.delete_records([ck.TopicPartition(TOPIC, 0, 0)])), (SEE_TOPIC,),
    ),
    ClientCall("init_producer_id", CONFLUENT, _ck_init, (SEE_ID,)),
    ClientCall("init_producer_id-idempotent", CONFLUENT, _ck_idempotent, (SEE_TOPIC,)),
    ClientCall(
        "add_partitions_to_txn", CONFLUENT, _in_transaction(_send_and_commit), (SEE_TOPIC, SEE_ID), True,
    ),
    ClientCall("add_offsets_to_txn", CONFLUENT, _ck_offsets, (SEE_GROUP, SEE_ID, READ_TOPIC), True),
    ClientCall("txn_offset_commit", CONFLUENT, _ck_offsets, (SEE_GROUP, SEE_ID), True, (READ_TOPIC,)),
    ClientCall(
        "end_txn", CONFLUENT, _in_transaction(_send, _commit), (SEE_ID, WRITE_TOPIC), True,
    ),
    ClientCall("create_acls", CONFLUENT, _futures(lambda a: a.create_acls([_BINDING]))),
    ClientCall("delete_acls", CONFLUENT, _futures(lambda a: a.delete_acls([_BINDINGS]))),
    *(
        ClientCall(
            f"describe_configs-{kind}", CONFLUENT,
            _futures(partial(_ck_describe, kind)),
        )
        for kind in ("topic", "broker")
    ),
    *(
        ClientCall(
            f"incremental_alter_configs-{kind}", CONFLUENT,
            _futures(partial(_ck_alter, kind, key)),
        )
        for kind, key in (("topic", "retention_ms"), ("broker", "log_retention_ms"))
    ),
    ClientCall(
        "create_partitions", CONFLUENT,
        _futures(
            lambda a: a.create_partitions([ck_admin.NewPartitions(TOPIC, 9)], validate_only=True)
        ),
    ),
    ClientCall(
        "delete_groups", CONFLUENT, _futures(lambda a: a.delete_consumer_groups([GROUP])),
        (SEE_GROUP,),
    ),
    ClientCall(
        "elect_leaders", CONFLUENT,
        _futures(lambda a: a.elect_leaders(ck.ElectionType.PREFERRED, None)),
    ),
    ClientCall(
        "alter_user_scram_credentials", CONFLUENT,
        _futures(
            lambda a: a.alter_user_scram_credentials(
                [ck_admin.UserScramCredentialDeletion("no-such", ck_admin.ScramMechanism.SCRAM_SHA_256)]
            )
        ),
    ),
    ClientCall(
        "consumer_group_heartbeat", CONFLUENT, _reading(_ck_join, group_protocol="consumer"),
        (SEE_GROUP,), beyond=(READ_TOPIC,),
    ),
    ClientCall("delete_topics", CONFLUENT, _futures(lambda a: a.delete_topics([TOPIC]))),
]  # fmt: skip
