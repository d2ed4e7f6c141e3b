"""Which extra of ours brings which driver."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dualwrite.errors import ConfigurationError

EXTRAS: Final = {
    "psycopg": "postgres",
    "pymysql": "mysql",
    "aiosqlite": "async",
    "rocksdict": "rocksdb",
    "kazoo": "zookeeper",
}


@contextmanager
def naming_extras() -> Iterator[None]:
    """Say which extra is missing instead of which module."""
    try:
        yield
    except ImportError as error:
        module = (error.name or str(error)).partition(".")[0]
        extra = EXTRAS.get(module)
        hint = f": pip install 'dualwrite[{extra}]'" if extra else ""
        raise ConfigurationError(f"{module} is not installed{hint}") from error
