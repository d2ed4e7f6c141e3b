"""How many ids and open two-phase transactions each principal has.

A prepared transaction holds readers back until its owner ends it (KIP-939), so whoever may open many can
stop a cluster. The owner of an id is the principal that made it; its records carry the name, so the
figures survive a restart.
"""

from collections import Counter

from dualwrite.broker.transactions.state import Transaction, TxnState


class Owners:
    """The figures; `moved` is called for every record that is replayed."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self._open: Counter[str] = Counter()

    def ids(self, owner: str) -> int:
        """Transactional ids that `owner` has made."""
        return self._ids[owner]

    def open_two_phase(self, owner: str) -> int:
        """Two-phase transactions that are open under these."""
        return self._open[owner]

    def moved(self, before: Transaction | None, after: Transaction) -> None:
        """An id has gone from one state to the next."""
        if before is not None:
            self._add(before, -1)
        if after.state is not TxnState.DEAD:
            self._add(after, 1)

    def _add(self, transaction: Transaction, number: int) -> None:
        self._ids[transaction.owner] += number
        if transaction.is_two_phase and transaction.state is TxnState.ONGOING:
            self._open[transaction.owner] += number
