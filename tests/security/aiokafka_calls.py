"""The requests that aiokafka sends."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import aiokafka
import aiokafka.admin

from tests.security.acl_cases import GROUP, ID, TOPIC
from tests.security.client_calls import (
    AIOKAFKA,
    CONFIGURED,
    READ_TOPIC,
    SEE_GROUP,
    SEE_ID,
    SEE_TOPIC,
    WRITE_ID,
    WRITE_TOPIC,
    Applicant,
    ClientCall,
    attempt,
)


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
    name, values = CONFIGURED[kind]
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
