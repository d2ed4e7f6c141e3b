"""Conversations between a store and Kafka, written once for threads and for an event loop.

A `Steps` generator yields calls and gets their results back. `run` makes the calls one after the
other; `run_async` awaits them. So the order of steps, which is what correctness hangs on, exists
once, and both facades stay thin. Stores and producers have the same method names in both worlds:
conversations are typed against the blocking ones.
"""

import asyncio
import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

Steps = Generator[Callable[[], Any], Any, T]


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Steps[T]:
    """Have the driver make one call; use as `result = yield from call(store.claim, id)`."""
    result: T = yield partial(function, *args, **kwargs)
    return result


def run(steps: Steps[T]) -> T:
    """Drive a conversation with blocking calls.

    Whatever a call raises is raised inside the conversation, which alone knows what it means there,
    and so is an interrupt that strikes here, between two calls.
    """
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            while True:
                step = steps.send(result) if error is None else steps.throw(error)
                error = None
                result = step()
        except BaseException as raised:
            if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:
                if isinstance(raised, StopIteration):
                    return cast(T, raised.value)
                raise
            error = raised


async def run_async(steps: Steps[T], is_stopped: Callable[[], bool] = lambda: False) -> T:
    """Drive a conversation with awaitable calls.

    Calls are never cancelled half-way: a worker thread cannot be, and its connection would be used
    twice. When `is_stopped` says so, CancelledError is raised inside the conversation between two
    calls, once: what it does about it runs to its end.
    """
    was_stopped = False
    try:
        step = next(steps)
        while True:
            try:
                result = step()
                if inspect.isawaitable(result):
                    result = await result
                if not was_stopped and is_stopped():
                    was_stopped = True
                    raise asyncio.CancelledError
            except BaseException as error:  # noqa: BLE001 - the conversation judges it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        return cast(T, done.value)
    finally:
        steps.close()
