"""From the database's errors to ours, named by what the caller must do next."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dualwrite.adapters.sql.dialect import Failure, SqlDialect
from dualwrite.errors import ConfigurationError, InvalidTxnState, RetryableError
from dualwrite.store import CannotDecideYet, StoreUnavailable

SCHEMA_COMMAND = "dualwrite schema apply --store URL"


@contextmanager
def translated(dialect: SqlDialect, doing: str) -> Iterator[None]:
    """Raise what a statement of the store's own means; anything unforeseen goes through."""
    try:
        yield
    except (PoolTimeout, OSError) as error:
        raise StoreUnavailable(f"{doing}: {error}") from error
    except Exception as error:
        named = translate(dialect, error, doing)
        if named is None:
            raise
        raise named from error


def translate(dialect: SqlDialect, error: Exception, doing: str) -> Exception | None:
    """The error under the name that tells what to do; None if it has no better name."""
    if isinstance(error, NoSuchTableError):
        return _missing(doing)
    fact = f"{doing}: {_first_line(error)}"
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return StoreUnavailable(fact)
    kind = dialect.failure(error)
    if kind is Failure.LOST:
        return StoreUnavailable(fact)
    if kind is Failure.LOCKED:
        return CannotDecideYet(f"{doing}: {kind.value} ({_first_line(error)})")
    if kind is Failure.CONFLICT:
        return RetryableError(fact)
    if kind is Failure.NO_TABLE:
        return _missing(fact)
    if kind is Failure.DENIED:
        return ConfigurationError(fact)
    if kind is Failure.DOOMED:
        return InvalidTxnState(f"{doing}: a statement of this transaction had failed before")
    return None


def _first_line(error: Exception) -> str:
    """The database's own words, without the lines that point into our statement."""
    return str(getattr(error, "orig", None) or error).partition("\n")[0]


def _missing(fact: str) -> ConfigurationError:
    return ConfigurationError(f"{fact}; make the tables with `{SCHEMA_COMMAND}`")
