"""One conversation, two drivers."""

import _thread
import asyncio
import signal
from functools import partial

import pytest

from dualwrite.steps import call, run, run_async


def conversation(log, function):
    try:
        first = yield from call(function, 1)
        second = yield from call(function, first)
    except BaseException as error:
        log.append(type(error).__name__)
        yield from call(log.append, "undone")
        raise
    return second


def plus_one(value):
    return value + 1


async def plus_one_later(value):
    await asyncio.sleep(0)
    return value + 1


def test_both_drivers_give_the_same_result():
    assert run(conversation([], plus_one)) == 3
    assert asyncio.run(run_async(conversation([], plus_one_later))) == 3
    assert asyncio.run(run_async(conversation([], plus_one))) == 3


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_a_call_raises_is_raised_inside_the_conversation(kind):
    log = []

    def fail(_):
        raise kind

    with pytest.raises(kind):
        run(conversation(log, fail))

    assert log == [kind.__name__, "undone"]


def test_interrupt_between_two_calls_is_raised_inside_the_conversation():
    """It strikes when the next call is named and not made yet: what was done must be undone."""
    log = []
    step = partial(log.append, "made")

    def interrupted():
        try:
            # In C, so that Python looks for signals only when the conversation has yielded.
            for _ in map(_thread.interrupt_main, [signal.SIGINT]):
                yield step
        except KeyboardInterrupt:
            yield from call(log.append, "undone")
            raise

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(interrupted())
    finally:
        signal.signal(signal.SIGINT, before)

    assert log == ["undone"]


def test_stop_is_raised_between_two_calls():
    log, calls = [], []

    async def record(value):
        calls.append(value)
        return value + 1

    async def main():
        await run_async(conversation(log, record), lambda: len(calls) > 0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())

    assert log == ["CancelledError", "undone"]
    assert calls == [1]


def test_conversation_is_closed_when_the_driver_is_interrupted():
    closed = []

    def endless():
        try:
            while True:
                yield from call(int)
        finally:
            closed.append(True)

    steps = endless()
    next(steps)
    steps.close()

    assert closed == [True]
