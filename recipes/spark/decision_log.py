"""Where a sink's ledger lives: a compacted topic, a SQL database or ZooKeeper.

A log does two things: it reads the ledger, and it applies a change to the ledger as it durably is,
so that no other change comes in between. Everything else is the protocol's (`ledger`).
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark.ledger import Change, Ledger


class DecidingTransaction(Protocol):
    """A transaction of the database that holds the ledger, with the user's own writes in it."""

    @property
    def connection(self) -> Any:
        """SQLAlchemy's connection."""
        ...

    @property
    def session(self) -> Any:
        """SQLAlchemy's session on the same connection."""
        ...

    def update(self, change: Change) -> Ledger:
        """Apply a change to the ledger inside this transaction, as its last statement."""
        ...


class DecisionLog(Protocol):
    """The durable home of one sink's ledger. One object is used by one thread at a time."""

    def read(self) -> Ledger: ...

    def update(self, change: Change) -> Ledger:
        """Apply the change and return the ledger after it; what `change` raises is passed on.

        An answer that was lost is resolved here, by running the change again.
        """
        ...

    def transaction(self) -> AbstractContextManager[DecidingTransaction]:
        """Begin a transaction that commits the user's writes and a change together.

        Leaving the block commits. `OutcomeUnknown` from there is resolved by an `update`, which
        waits for the lost transaction. Logs outside a database raise `ConfigurationError`.
        """
        ...

    def close(self) -> None: ...


def no_data(place: str) -> ConfigurationError:
    """Explain why a log without the user's data cannot decide over it (T29 of the traps)."""
    return ConfigurationError(
        f"decisions are kept in {place}, which cannot commit together with other data: give"
        " KafkaSink the database's store (decisions=SqlStore(...)) to use also="
    )
