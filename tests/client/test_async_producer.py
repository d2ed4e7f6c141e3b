"""`AsyncTwoPhaseProducer`: the same flows on an event loop."""

import asyncio
from contextlib import suppress

import pytest
import uvloop

from dualwrite import AsyncTwoPhaseProducer, Fenced, InvalidTxnState, PreparedTxnState
from dualwrite.admin import AsyncTransactionAdmin
from dualwrite.connection import AsyncConnection
from dualwrite.failures import KafkaTimeout
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.messages.metadata import MetadataRequest


def values(topic, servers):
    return [message.value() for message in read_topic(topic, servers)]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    factory = None if request.param == "asyncio" else uvloop.new_event_loop

    def run(main):
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main)

    return run


async def start(config, keep=False):
    producer = AsyncTwoPhaseProducer(config)
    await producer.init_transactions(keep_prepared_txn=keep, timeout=30)
    return producer


def test_prepare_close_recover_complete(run, two_phase, servers, name):
    async def main():
        async with await start(two_phase) as producer:
            await producer.begin_transaction()
            told = []
            for number in range(5):
                await producer.produce(
                    name,
                    b"%d" % number,
                    partition=0,
                    on_delivery=lambda e, m: told.append(m.offset()),
                )
            state = await producer.prepare_transaction()
            assert told == list(range(5))
            with pytest.raises(InvalidTxnState):
                await producer.produce(name, b"late")
            with pytest.raises(InvalidTxnState):
                await producer.flush()
        async with await start(two_phase, keep=True) as again:
            assert again.prepared_txn_state == state
            with pytest.raises(InvalidTxnState):
                await again.begin_transaction()
            assert await again.complete_transaction(state) == "committed"
            assert await again.complete_transaction(state) == "none"
            await again.begin_transaction()
            assert await again.produce_batch(name, [(None, b"5", None, 0)], partition=0) == 1
            assert await again.flush_transaction() == again.producer_pair
            await again.commit_transaction()
            await again.begin_transaction()
            await again.produce(name, b"aborted", partition=0)
            assert len(again) == 1
            await again.poll()
            assert await again.flush() == 0
            await again.abort_transaction()

    run(main())
    assert values(name, servers) == [b"%d" % number for number in range(6)]


def test_offsets_and_administration(run, config, servers, name):
    async def main():
        async with (
            await start(config) as producer,
            AsyncTransactionAdmin({"bootstrap.servers": servers}) as admin,
            AsyncConnection(servers) as connection,
        ):
            await producer.begin_transaction()
            await producer.produce(name, b"1", partition=0)
            await producer.send_offsets_to_transaction({(name, 0): 3}, "group-" + name)
            await producer.flush()
            described = await admin.describe_transactions([name])
            assert described[name].pair == producer.producer_pair
            assert [t.transactional_id for t in await admin.list_transactions(id_pattern=name)] == [
                name
            ]
            assert (await admin.describe_producers(name, 0))[0].transaction_start_offset == 0
            assert (await admin.features()).transaction_version == 2
            metadata = await connection.send(MetadataRequest(topics=[]))
            assert metadata.cluster_id == await admin.cluster_id()
            assert (await connection.offer()).versions[26][1] == 5
            pair = producer.producer_pair
            after = await admin.end_txn(name, pair.producer_id, pair.epoch, commit=True)
            assert after == PreparedTxnState(pair.producer_id, pair.epoch + 1)
            await admin.force_terminate_transaction(name)
            with pytest.raises(Fenced):
                await producer.commit_transaction()

    run(main())
    assert values(name, servers) == [b"1"]


def test_a_cancelled_commit_may_be_repeated(run, two_phase, servers, name):
    """Cancellation at any moment leaves a call that can be made again, and one record."""

    async def main():
        async with await start(two_phase) as producer:
            for steps in range(8):
                await producer.begin_transaction()
                await producer.produce(name, b"%d" % steps, partition=0)
                task = asyncio.ensure_future(producer.commit_transaction())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                with suppress(InvalidTxnState):  # it was done already
                    await producer.commit_transaction()

    run(main())
    assert values(name, servers) == [b"%d" % steps for steps in range(8)]


def test_tasks_that_produce_while_another_prepares(run, two_phase, servers, name):
    accepted, refused = [], []

    async def main():
        async with await start(two_phase) as producer:
            await producer.begin_transaction()
            is_under_way = asyncio.Event()

            async def write(task):
                # Far more than there is time for: prepare comes in the middle, however slow it is.
                for number in range(20_000):
                    value = b"%d-%d" % (task, number)
                    try:
                        await producer.produce(name, value, partition=0)
                    except InvalidTxnState:
                        refused.append(value)
                        return
                    accepted.append(value)
                    if number == 20:
                        is_under_way.set()
                    if number % 50 == task:
                        await asyncio.sleep(0)

            tasks = [asyncio.ensure_future(write(n)) for n in range(4)]
            await is_under_way.wait()
            state = await producer.prepare_transaction()
            await asyncio.gather(*tasks)
            await producer.complete_transaction(state)

    run(main())
    assert len(refused) == 4
    assert sorted(values(name, servers)) == sorted(accepted)


def test_no_broker_is_a_timeout(run):
    async def main():
        async with AsyncTwoPhaseProducer(
            {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}
        ) as producer:
            with pytest.raises(KafkaTimeout):
                await producer.init_transactions(timeout=0.3)

    run(main())


def test_close_aborts_what_is_open(run, config, servers, name):
    async def main():
        async with await start(config) as producer:
            await producer.begin_transaction()
            await producer.produce(name, b"1")
            await producer.flush()
        await producer.close()
        async with AsyncTransactionAdmin({"bootstrap.servers": servers}) as admin:
            return (await admin.describe_transactions([name]))[name].state

    assert run(main()) == "CompleteAbort"


def test_close_can_leave_a_transaction_to_others(run, config, servers, name):
    """Without two-phase commit an open transaction may be decided too; its pair ends it."""

    async def main():
        producer = await start(config)
        await producer.begin_transaction()
        await producer.produce(name, b"1")
        pair = await producer.flush_transaction()
        await producer.close(0, leave_open=True)
        async with AsyncTransactionAdmin({"bootstrap.servers": servers}) as admin:
            await admin.end_txn(name, pair.producer_id, pair.epoch, commit=True)

    run(main())
    assert values(name, servers) == [b"1"]
