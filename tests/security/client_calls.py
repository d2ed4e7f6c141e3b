"""Which call of which real client sends the request of which case, and what the client says of it.

A call gets an `Applicant`. Where a client would be stopped on its way to the request (it needs the same
right for an earlier one), the call takes the right away itself, by `tester.lose()`, once it is there;
then it is `staged`. `also` are rights that the client needs on its way and the request does not.
"""

import asyncio
import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from dualwrite.broker.acl import Operation as O
from dualwrite.broker.acl import ResourceType as R
from tests.broker.kafka_python import KafkaAdminClient, KafkaConsumer, KafkaProducer
from tests.security.acl_cases import GROUP, ID, TOPIC, Needed
from tests.security.desk import REFUSALS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors
    from kafka import admin as kp_admin
    from kafka.structs import OffsetAndMetadata
    from kafka.structs import TopicPartition as KpPartition

CONFLUENT, KAFKA_PYTHON, AIOKAFKA = "confluent-kafka", "kafka-python", "aiokafka"
SECONDS = 20.0
FATAL = -150
_KP_CODES = {
    name: code
    for name, error in vars(kafka.errors).items()
    if isinstance(error, type) and isinstance(code := getattr(error, "errno", None), int)
}


class Applicant:
    """The user whose rights are tested, as each client logs in; `lose` takes one right away."""

    def __init__(
        self,
        servers: str,
        lose: Callable[[], None],
        sent: Callable[[], int],
        group_state: Callable[[], str],
    ) -> None:
        self.servers = servers
        self.lose = lose
        self.sent = sent
        """How many requests of the case's API the broker has answered so far."""
        self.group_state = group_state

    def librdkafka(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "tester",
            "sasl.password": "tester-password",
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def python(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "tester",
            "sasl_plain_password": "tester-password",
            **more,
        }


@dataclass(frozen=True)
class ClientCall:
    case: str
    client: str
    run: Callable[[Applicant], Any]
    also: tuple[Needed, ...] = ()
    staged: bool = False
    without: tuple[Needed, ...] | None = None
    """The rights whose lack this call can show; None for all of the case's."""
    beyond: tuple[Needed, ...] = ()
    """What the client needs to go on once the request was served."""

    def __str__(self) -> str:
        return f"{self.case}-{self.client}"


def told(said: Any) -> set[int]:
    """Every error code in what a client has raised or returned, in whichever form it has it."""
    if isinstance(said, ck.KafkaException):
        return told(said.args[0])
    if isinstance(said, ck.KafkaError):
        # What makes a client unusable is told in words, within an error of its own.
        named = [code for code in REFUSALS if ck.KafkaError(code).str() in said.str()]
        return {int(code) for code in named} if said.code() == FATAL else {said.code()}
    if isinstance(said, BaseException | type):
        code = getattr(said, "errno", None)
        return ({code} if isinstance(code, int) else set()) | told(getattr(said, "args", ()))
    if isinstance(said, str):
        return {_KP_CODES[name] for name in re.findall(r"\w+Error\b", said) if name in _KP_CODES}
    if isinstance(said, ck.ConsumerGroupTopicPartitions):
        return told([partition.error for partition in said.topic_partitions])
    if isinstance(said, Mapping):
        found = {value for key, value in said.items() if key == "error_code"}
        return found.union(*(told(value) for value in said.values()))
    if isinstance(said, list | tuple | set):
        return set().union(*(told(part) for part in said))
    if hasattr(said, "to_object"):
        return told(said.to_object())
    return set()


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns or raises."""
    try:
        return call()
    except (ck.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError) as error:
        return error


def _until(step: Callable[[], Any]) -> Any:
    """The first thing that a repeated step says or raises."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = attempt(step)
        if said:
            return said
    raise AssertionError("the client has said nothing")


def _answered(ask: Callable[[], Any]) -> Any:
    """What the broker says; what librdkafka says of itself (it has no connection yet) is no answer."""

    def step() -> Any:
        said = attempt(ask)
        return [] if any(code < 0 for code in told(said)) else [said]

    return _until(step)


# --- confluent-kafka


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
    return _until(lambda: _polled(consumer))


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
    return _answered(ask)


def _joined(consumer: ck.Consumer) -> Any:
    message = consumer.poll(0.1)
    return (message and message.error()) or consumer.assignment()


def _ck_join(tester: Applicant, consumer: ck.Consumer) -> Any:
    consumer.subscribe([TOPIC])
    return _until(lambda: _joined(consumer))


def _ck_sync(tester: Applicant, consumer: ck.Consumer) -> Any:
    """The right goes while the broker waits for more members, between JoinGroup and SyncGroup."""
    consumer.subscribe([TOPIC])
    _until(lambda: consumer.poll(0.05) or tester.group_state() == "PreparingRebalance")
    tester.lose()
    return _until(lambda: _joined(consumer))


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

SEE_TOPIC, SEE_GROUP, SEE_ID = (
    (O.DESCRIBE, R.TOPIC), (O.DESCRIBE, R.GROUP), (O.DESCRIBE, R.TRANSACTIONAL_ID),
)  # fmt: skip
WRITE_TOPIC, WRITE_ID = (O.WRITE, R.TOPIC), (O.WRITE, R.TRANSACTIONAL_ID)
READ_TOPIC, READ_GROUP = (O.READ, R.TOPIC), (O.READ, R.GROUP)

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

# --- kafka-python


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
    return _until(lambda: consumer.poll(timeout_ms=100))


def _kp_end(tester: Applicant, consumer: Any) -> Any:
    consumer.end_offsets([_PARTITION])
    tester.lose()
    return consumer.end_offsets([_PARTITION])


def _kp_join(tester: Applicant, consumer: Any) -> Any:
    consumer.subscribe([TOPIC])
    return _until(lambda: consumer.poll(timeout_ms=100) or consumer.assignment())


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


_KP_CONFIG = {
    "topic": (kp_admin.ConfigResourceType.TOPIC, TOPIC, {"retention.ms": "1000000"}),
    "broker": (kp_admin.ConfigResourceType.BROKER, "1", {"log.retention.ms": "1000000"}),
    "group": (kp_admin.ConfigResourceType.GROUP, GROUP, {"consumer.session.timeout.ms": "45000"}),
}


def _kp_alter(kind: str, incremental: bool, client: Any) -> Any:
    wanted = [kp_admin.ConfigResource(*_KP_CONFIG[kind])]
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
        for kind in _KP_CONFIG
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

# --- aiokafka


def _aio(call: Callable[[Any], Any]) -> Callable[[Applicant], Any]:
    async def work(tester: Applicant) -> Any:
        client = aiokafka.admin.AIOKafkaAdminClient(**tester.python())
        await client.start()
        try:
            return await call(client)
        finally:
            await client.close()

    return lambda tester: attempt(lambda: asyncio.run(work(tester)))


def _aio_producing(use: Callable[[Applicant, Any], Any], **more: Any) -> Callable[[Applicant], Any]:
    async def work(tester: Applicant) -> Any:
        producer = aiokafka.AIOKafkaProducer(**tester.python(**more))
        try:
            await producer.start()
            return await use(tester, producer)
        finally:
            await producer.stop()

    return lambda tester: attempt(lambda: asyncio.run(work(tester)))


def _aio_reading(use: Callable[[Applicant, Any], Any], *topics: str) -> Callable[[Applicant], Any]:
    async def work(tester: Applicant) -> Any:
        consumer = aiokafka.AIOKafkaConsumer(
            *topics,
            **tester.python(
                group_id=GROUP if topics else None, auto_offset_reset="earliest",
                enable_auto_commit=False, heartbeat_interval_ms=100,
            ),
        )  # fmt: skip
        try:
            await consumer.start()
            return await use(tester, consumer)
        finally:
            await consumer.stop()

    return lambda tester: attempt(lambda: asyncio.run(work(tester)))


_AIO_PARTITION = aiokafka.TopicPartition(TOPIC, 0)


async def _aio_fetch(tester: Applicant, consumer: Any) -> Any:
    consumer.assign([_AIO_PARTITION])
    return await consumer.getmany(timeout_ms=1000)


async def _aio_assignment(tester: Applicant, consumer: Any) -> Any:
    return consumer.assignment()


async def _aio_heartbeat(tester: Applicant, consumer: Any) -> Any:
    sent = tester.sent()
    tester.lose()
    while tester.sent() < sent + 2:
        await consumer.getmany(timeout_ms=50)
    return None


async def _aio_transaction(tester: Applicant, producer: Any) -> Any:
    await producer.begin_transaction()
    tester.lose()
    return await producer.send_and_wait(TOPIC, b"x")


async def _aio_offsets(tester: Applicant, producer: Any) -> Any:
    await producer.begin_transaction()
    tester.lose()
    return await producer.send_offsets_to_transaction({_AIO_PARTITION: 1}, GROUP)


async def _aio_commit(tester: Applicant, producer: Any) -> Any:
    await producer.begin_transaction()
    await producer.send_and_wait(TOPIC, b"x")
    tester.lose()
    return await producer.commit_transaction()


def _aio_config(kind: str, *, with_values: bool) -> list[Any]:
    kinds = aiokafka.admin.config_resource.ConfigResourceType
    _, name, values = _KP_CONFIG[kind]
    return [
        aiokafka.admin.config_resource.ConfigResource(
            kinds.TOPIC if kind == "topic" else kinds.BROKER, name, values if with_values else None
        )
    ]


async def _aio_describe(kind: str, client: Any) -> Any:
    return await client.describe_configs(_aio_config(kind, with_values=False))


async def _aio_alter(kind: str, client: Any) -> Any:
    return await client.alter_configs(_aio_config(kind, with_values=True))


async def _nothing(tester: Applicant, producer: Any) -> Any:
    return None


OF_AIOKAFKA = [
    ClientCall(
        "produce", AIOKAFKA, _aio_producing(lambda t, p: p.send_and_wait(TOPIC, b"x")), (SEE_TOPIC,)
    ),
    ClientCall("fetch", AIOKAFKA, _aio_reading(_aio_fetch), (SEE_TOPIC,)),
    ClientCall("metadata", AIOKAFKA, _aio(lambda a: a.describe_topics([TOPIC]))),
    ClientCall("find_coordinator-group", AIOKAFKA, _aio(lambda a: a.find_coordinator(GROUP))),
    ClientCall(
        "find_coordinator-id", AIOKAFKA, _aio_producing(_nothing, transactional_id=ID),
        beyond=(WRITE_ID,),
    ),
    ClientCall(
        "join_group", AIOKAFKA, _aio_reading(_aio_assignment, TOPIC), (SEE_GROUP, READ_TOPIC)
    ),
    ClientCall(
        "heartbeat", AIOKAFKA, _aio_reading(_aio_heartbeat, TOPIC), (SEE_GROUP, READ_TOPIC), True
    ),
    ClientCall(
        "describe_groups", AIOKAFKA,
        _aio(lambda a: a.describe_consumer_groups([GROUP], group_coordinator_id=1)),
    ),
    ClientCall(
        "create_topics", AIOKAFKA,
        _aio(lambda a: a.create_topics([aiokafka.admin.NewTopic(TOPIC, 1, 1)])),
    ),
    ClientCall(
        "delete_records", AIOKAFKA,
        _aio(
            lambda a: a.delete_records(
                {_AIO_PARTITION: aiokafka.admin.records_to_delete.RecordsToDelete(0)}
            )
        ),
        (SEE_TOPIC,),
    ),
    ClientCall(
        "init_producer_id", AIOKAFKA, _aio_producing(_nothing, transactional_id=ID), (SEE_ID,)
    ),
    ClientCall(
        "init_producer_id-idempotent", AIOKAFKA,
        _aio_producing(lambda t, p: p.send_and_wait(TOPIC, b"x"), enable_idempotence=True),
        (SEE_TOPIC,),
    ),
    ClientCall(
        "add_partitions_to_txn", AIOKAFKA, _aio_producing(_aio_transaction, transactional_id=ID),
        (SEE_TOPIC, SEE_ID), True,
    ),
    ClientCall(
        "add_offsets_to_txn", AIOKAFKA, _aio_producing(_aio_offsets, transactional_id=ID),
        (SEE_GROUP, SEE_ID, READ_TOPIC), True,
    ),
    ClientCall(
        "end_txn", AIOKAFKA, _aio_producing(_aio_commit, transactional_id=ID),
        (SEE_ID, WRITE_TOPIC), True,
    ),
    *(
        ClientCall(
            f"describe_configs-{kind}", AIOKAFKA,
            _aio(partial(_aio_describe, kind)),
        )
        for kind in ("topic", "broker")
    ),
    *(
        ClientCall(
            f"alter_configs-{kind}", AIOKAFKA,
            _aio(partial(_aio_alter, kind)),
        )
        for kind in ("topic", "broker")
    ),
    ClientCall(
        "create_partitions", AIOKAFKA,
        _aio(
            lambda a: a.create_partitions(
                {TOPIC: aiokafka.admin.NewPartitions(9)}, validate_only=True
            )
        ),
    ),
    ClientCall("delete_topics", AIOKAFKA, _aio(lambda a: a.delete_topics([TOPIC]))),
]  # fmt: skip

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
