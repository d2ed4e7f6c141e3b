"""The dual write in an event loop; above all, what a cancellation can and cannot do."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from dualwrite import InvalidTxnState, RetryableError, Rollback
from dualwrite.adapters.sql import SqlStore


def test_block_commits_to_both_sides(world):
    async def main():
        async with world.async_writer() as dw:
            async with dw.transaction() as tx:
                await world.async_order(tx, 1)
            return tx.outcome

    outcome = asyncio.run(main())

    assert (outcome.database, outcome.kafka) == ("committed", "committed")
    world.assert_agree([1])


def test_exception_and_rollback_undo_both_sides(world):
    async def main():
        async with world.async_writer() as dw:
            with pytest.raises(ValueError):
                async with dw.transaction() as tx:
                    await world.async_order(tx, 1)
                    raise ValueError
            async with dw.transaction() as tx:
                await world.async_order(tx, 2)
                raise Rollback
            async with dw.transaction() as tx:
                await world.async_order(tx, 3)

    asyncio.run(main())
    world.assert_agree([3])


def test_callers_async_session_is_committed(postgres_world):
    world = postgres_world

    async def main():
        engine = create_async_engine(world.url)
        store = SqlStore(engine, table=world.state_table)
        async with world.async_writer(store=store) as dw, AsyncSession(engine) as session:
            async with dw.transaction(session) as tx:
                assert tx.session is session
                await world.async_order(tx, 1)
        await engine.dispose()

    asyncio.run(main())
    world.assert_agree([1])


def test_tasks_share_a_writer_and_do_not_join_each_other(world):
    async def main():
        async with world.async_writer(slots=3, kafka_commit="background") as dw:

            async def write(number):
                async def block(tx):
                    await world.async_order(tx, number)

                await dw.run(block, attempts=10)

            async with dw.transaction() as outer:
                # Child tasks inherit the context, and still have transactions of their own.
                await asyncio.gather(*(write(number) for number in range(6)))
                if "sqlite" not in world.url:
                    await world.async_order(outer, 99)

    asyncio.run(main())
    world.assert_agree([*range(6)] + ([] if "sqlite" in world.url else [99]))


def test_inner_block_joins_the_outer_one(world):
    async def main():
        async with world.async_writer() as dw:
            async with dw.transaction() as outer:
                await world.async_order(outer, 1)
                async with dw.transaction() as inner:
                    assert inner is outer
                    await world.async_order(inner, 2)
            with pytest.raises(InvalidTxnState):
                async with dw.transaction() as outer:
                    await world.async_order(outer, 3)
                    with pytest.raises(ValueError):
                        async with dw.transaction():
                            raise ValueError

    asyncio.run(main())
    world.assert_agree([1, 2])


def test_slots_limit_open_transactions(sqlite_world):
    async def main():
        async with sqlite_world.async_writer(slots=1, slot_timeout=0.05) as dw:
            async with dw.transaction():
                with pytest.raises(RetryableError, match="no slot"):
                    await asyncio.create_task(empty(dw))
            await empty(dw)

    async def empty(dw):
        async with dw.transaction():
            pass

    asyncio.run(main())


# The steps of the exit path, with what a cancellation there must lead to.
BEFORE_COMMIT = ["flushed", "begun", "produced"]
# Between prepare and COMMIT the loop does not turn: a cancellation there comes too late.
FROM_COMMIT_ON = ["prepared", "committing", "committed", "completed"]


@pytest.mark.parametrize("step", BEFORE_COMMIT)
def test_cancellation_before_commit_undoes_both(world, step):
    outcome = cancel_at(world, step)

    assert outcome.database == "rolled_back"
    world.assert_agree([2])


@pytest.mark.parametrize("step", FROM_COMMIT_ON)
def test_cancellation_from_commit_on_lets_both_commit(world, step):
    outcome = cancel_at(world, step)

    assert (outcome.database, outcome.kafka) == ("committed", "committed")
    world.assert_agree([1, 2])


def test_cancellation_while_kafka_may_have_answered_keeps_both_sides_equal(world):
    """After the state write the loop turns only if Kafka's answer is not there yet."""
    outcome = cancel_at(world, "remembered")

    if outcome.database == "committed":
        assert outcome.kafka == "committed"
        world.assert_agree([1, 2])
    else:
        world.assert_agree([2])


def cancel_at(world, step):
    """Cancel the task that leaves the block while it is at `step`; then write order 2."""

    async def main():
        reached = asyncio.Event()

        def on_step(name):
            if name == step and armed:
                reached.set()
                task.cancel()

        armed = []
        async with world.async_writer(on_step=on_step, slots=1) as dw:
            seen = []

            async def write():
                async with dw.transaction() as tx:
                    seen.append(tx)
                    await world.async_order(tx, 1)

            armed.append(True)
            task = asyncio.create_task(write())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert reached.is_set()
            armed.clear()
            async with dw.transaction() as tx:
                await world.async_order(tx, 2)
            return seen[0].outcome

    return asyncio.run(main())


def test_cancellation_at_every_point_of_the_loop_keeps_both_sides_equal(world):
    """Cancel after 0, 1, 2 ... turns of the loop, until a transaction gets through untouched."""

    async def main():
        committed = []
        async with world.async_writer(slots=1) as dw:
            for turns in range(400):
                seen = []

                async def write(number=turns, seen=seen):
                    async with dw.transaction() as tx:
                        seen.append(tx)
                        await world.async_order(tx, number)

                task = asyncio.create_task(write())
                for _ in range(turns * 3):
                    await asyncio.sleep(0)
                was_done = task.done()
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    if seen and was_committed(seen[0]):
                        committed.append(turns)
                else:
                    committed.append(turns)
                if was_done:
                    return committed
        raise AssertionError("no transaction got through")

    committed = asyncio.run(main())

    assert committed
    world.assert_agree(committed)


def test_second_cancellation_leaves_commit_running_and_close_waits_for_it(postgres_world):
    world = postgres_world
    slow_commit(world)

    async def main():
        committing = asyncio.Event()

        def on_step(name):
            if name == "committing":
                committing.set()

        async with world.async_writer(on_step=on_step) as dw:

            async def write():
                async with dw.transaction() as tx:
                    await world.async_order(tx, 1)

            task = asyncio.create_task(write())
            await committing.wait()
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    world.assert_agree([1])


def slow_commit(world, seconds=0.5):
    """Make every COMMIT that touches the orders wait inside the database."""
    with world.engine.begin() as connection:
        connection.execute(
            text(
                f"CREATE FUNCTION {world.orders}_wait() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$"
            )
        )
        connection.execute(
            text(
                f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {world.orders} DEFERRABLE"
                f" INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {world.orders}_wait()"
            )
        )


def test_t4_timeout_during_commit_is_no_rollback(postgres_world):
    world = postgres_world
    slow_commit(world)

    async def main():
        async with world.async_writer() as dw:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), dw.transaction() as tx:
                    await world.async_order(tx, 1)
            return tx.outcome

    outcome = asyncio.run(main())

    assert outcome.kafka == "committed"
    world.assert_agree([1])


def was_committed(tx):
    try:
        return tx.outcome.database == "committed"
    except InvalidTxnState:
        return False
