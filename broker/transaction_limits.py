"""How many transactional ids and open two-phase transactions one principal may have.

A prepared transaction holds readers back until its owner ends it (KIP-939), so whoever may open many can
stop a cluster. Who owns an id is known from its last InitProducerId in this life of the broker; ids from
before a restart count for nobody until they are used again.
"""

from typing import Final

from dualwrite.broker.settings import Settings
from dualwrite.broker.transactions.coordinator import Coordinator
from dualwrite.broker.transactions.state import TxnState

_UNLIMITED: Final = 2**31 - 1


class TransactionLimits:
    """Who owns which ids, as far as a limit asks for it."""

    def __init__(self, settings: Settings, coordinator: Coordinator) -> None:
        self._ids_max: int = settings["max.transactional.ids.per.principal"]
        self._two_phase_max: int = settings["max.open.two.phase.transactions.per.principal"]
        self._coordinator = coordinator
        self._owned: dict[str, set[str]] = {}

    def allows(self, principal: str, transactional_id: str, *, enable_2pc: bool) -> bool:
        """Whether `principal` may initialise one more id, or one more for two-phase commit."""
        if self._is_off:
            return True
        get = self._coordinator.get
        owned = {name for name in self._owned.get(principal, ()) if get(name) is not None}
        self._owned[principal] = owned
        if transactional_id in owned:
            return True
        if len(owned) >= self._ids_max:
            return False
        return not enable_2pc or self._open_two_phase(owned) < self._two_phase_max

    def own(self, principal: str, transactional_id: str) -> None:
        """Remember who has initialised an id."""
        if not self._is_off:
            self._owned.setdefault(principal, set()).add(transactional_id)

    @property
    def _is_off(self) -> bool:
        return min(self._ids_max, self._two_phase_max) >= _UNLIMITED

    def _open_two_phase(self, owned: set[str]) -> int:
        known = (self._coordinator.get(name) for name in owned)
        return sum(
            1 for t in known if t is not None and t.is_two_phase and t.state is TxnState.ONGOING
        )
