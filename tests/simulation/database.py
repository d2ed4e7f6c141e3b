"""The other participant: a database whose commit is the decision."""

from random import Random


class Database:
    """Rows and one state row per transactional id, each statement atomic and durable."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rows: dict[str, list[tuple[str, int, bytes]]] = {}
        self.states: dict[str, str] = {}
        self._fences: dict[str, int] = {}

    def claim(self, transactional_id: str) -> int:
        """Take the id over: nobody with an older fence commits afterwards."""
        self._fences[transactional_id] = self._fences.get(transactional_id, 0) + 1
        return self._fences[transactional_id]

    def recall(self, transactional_id: str, fence: int) -> str | None:
        """The remembered state; None if somebody else has claimed the id."""
        if self._fences[transactional_id] != fence:
            return None
        return self.states.get(transactional_id, "")

    def commit(
        self,
        transactional_id: str,
        fence: int,
        state: str,
        name: str,
        rows: list[tuple[str, int, bytes]],
    ) -> str:
        """ "committed", "fenced", or "unknown" when the answer was lost on its way."""
        if self._fences[transactional_id] != fence:
            return "fenced"
        if self._random.random() < 0.03:
            return "unknown"
        self.states[transactional_id] = state
        self.rows[name] = rows
        return "unknown" if self._random.random() < 0.03 else "committed"
