"""A retry runs the whole block again, and only where nothing of it has happened."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

import pytest

import dualwrite.retries
from dualwrite.errors import Fenced, HeuristicAbort, OutcomeUnknown, RetryableError
from dualwrite.retries import is_serialization_failure, retry, retrying


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(dualwrite.retries, "PAUSE_SECONDS", 0)


class SqlError(Exception):
    def __init__(self, sqlstate):
        self.sqlstate = sqlstate


class Failing:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize("error", [RetryableError("x"), Fenced("x"), SqlError("40001")], ids=repr)
def test_block_is_run_again(error):
    block = Failing(error, error)

    assert retry(block) == "done"
    assert block.calls == 3


@pytest.mark.parametrize(
    "error", [OutcomeUnknown("x"), HeuristicAbort("x"), SqlError("23505"), ValueError()], ids=repr
)
def test_block_that_may_have_happened_or_cannot_help_is_not_run_again(error):
    block = Failing(error)

    with pytest.raises(type(error)):
        retry(block)

    assert block.calls == 1


def test_attempts_are_counted():
    block = Failing(*[RetryableError("x")] * 10)

    with pytest.raises(RetryableError):
        retry(block, attempts=3)

    assert block.calls == 3


def test_decorator_knows_coroutines_and_keeps_arguments():
    tries = []

    @retrying
    def plain(value, *, more):
        tries.append(value)
        if len(tries) == 1:
            raise RetryableError("x")
        return value + more

    @retrying(attempts=2)
    async def later(value):
        tries.append(value)
        if len(tries) == 3:
            raise RetryableError("x")
        return value

    assert plain(1, more=2) == 3
    assert asyncio.run(later(5)) == 5
    assert tries == [1, 1, 5, 5]
    assert plain.__name__ == "plain"


def test_locked_sqlite_may_be_run_again(tmp_path):
    path = tmp_path / "db"
    with sqlite3.connect(path) as first:
        first.execute("CREATE TABLE t (x)")
    first.close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    second = sqlite3.connect(path, timeout=0, isolation_level=None)

    with pytest.raises(sqlite3.OperationalError) as caught:
        second.execute("BEGIN IMMEDIATE")

    assert is_serialization_failure(caught.value)
    holder.close()
    second.close()


def test_a_decorated_function_keeps_its_type() -> None:
    """mypy checks this one: it is what callers see."""

    @retrying
    def plain(number: int) -> str:
        return str(number)

    @retrying(attempts=2)
    async def later(number: int) -> str:
        return str(number)

    assert_type(plain(1), str)
    given: Callable[[int], Coroutine[Any, Any, str]] = later
    assert asyncio.run(given(1)) == plain(1)
