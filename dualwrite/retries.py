"""Running a whole block again when nothing of it has happened.

A retry replays the *block*, with a new database transaction and a new Kafka transaction; nothing
smaller can be repeated safely. `OutcomeUnknown` is never retried: it may have happened.
"""

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

from dualwrite.errors import RetryableError

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 5
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 2.0

_SQLSTATES = {"40001", "40P01"}
_MYSQL_DEADLOCK = 1213
_MYSQL_LOCK_TIMEOUT = 1205


def is_serialization_failure(error: BaseException) -> bool:
    """True for a database error after which the same transaction may succeed.

    Serialization failure (40001) and deadlock (40P01), and what MySQL and SQLite say instead; by
    the driver's error behind SQLAlchemy's, without knowing either.
    """
    for each in (error, getattr(error, "orig", None), error.__cause__):
        if each is None:
            continue
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        if state in _SQLSTATES:
            return True
        args = getattr(each, "args", ())
        if type(each).__module__.startswith("pymysql") and args:
            return args[0] in (_MYSQL_DEADLOCK, _MYSQL_LOCK_TIMEOUT)
        if getattr(each, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return True
    return False


def is_retryable(error: BaseException) -> bool:
    return isinstance(error, RetryableError) or is_serialization_failure(error)


def pauses(attempts: int) -> Iterator[float]:
    """Seconds to wait before each further attempt: growing, bounded, and scattered."""
    for attempt in range(attempts - 1):
        yield min(PAUSE_SECONDS * 2**attempt, PAUSE_SECONDS_MAX) * random.uniform(0.5, 1.0)


def retry(function: Callable[[], T], attempts: int = ATTEMPTS) -> T:
    """Call `function`, and again as long as it raises what may be run again."""
    waits = pauses(attempts)
    while True:
        try:
            return function()
        except Exception as error:
            pause = next(waits, None)
            if pause is None or not is_retryable(error):
                raise
        time.sleep(pause)


async def retry_async(function: Callable[[], Awaitable[T]], attempts: int = ATTEMPTS) -> T:
    """`retry` for a coroutine function."""
    waits = pauses(attempts)
    while True:
        try:
            return await function()
        except Exception as error:
            pause = next(waits, None)
            if pause is None or not is_retryable(error):
                raise
        await asyncio.sleep(pause)


@overload
def retrying(function: Callable[P, T]) -> Callable[P, T]: ...
@overload
def retrying(*, attempts: int = ...) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def retrying(
    function: Callable[P, T] | None = None, *, attempts: int = ATTEMPTS
) -> Callable[P, Any] | Callable[[Callable[P, T]], Callable[P, Any]]:
    """Decorate a function, plain or `async`, that holds a whole `with dw.transaction()` block.

    It is called again, after a short pause, when it raises `RetryableError` or the database's own
    serialization failure; at most `attempts` times in all.
    """

    def decorate(block: Callable[P, T]) -> Callable[P, Any]:
        return _retrying(block, attempts)

    return decorate if function is None else decorate(function)


def _retrying(function: Callable[P, T], attempts: int) -> Callable[P, Any]:
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def again_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await retry_async(functools.partial(function, *args, **kwargs), attempts)

        return again_async

    @functools.wraps(function)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        return retry(functools.partial(function, *args, **kwargs), attempts)

    return again
