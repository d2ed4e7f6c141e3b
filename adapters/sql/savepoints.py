"""Which savepoint a statement is about, by the rules that the databases have in common."""

import re
from collections.abc import Callable

from dualwrite.errors import InvalidTxnState

_STATEMENT = re.compile(
    r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
    r"(?:(?P<opens>SAVEPOINT)|(?P<releases>RELEASE)(?:\s+SAVEPOINT)?"
    r"|ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO(?:\s+SAVEPOINT)?)"
    r"\s+(?:\"(?P<quoted>[^\"]+)\"|`(?P<ticked>[^`]+)`|(?P<bare>\w+))",
    re.IGNORECASE | re.DOTALL,
)

Watcher = Callable[[str], None]


class Savepoints:
    """The savepoints that are open in one block.

    SQLAlchemy's own event comes before it has chosen a name, and raw SQL fires none; the statement is
    what all of them have in common. A name may be given again and again: the newest counts, and each
    is told to the watchers under a name of its own.
    """

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._watchers: list[tuple[Watcher, Watcher]] = []

    def watch(self, opened: Watcher, rolled_back: Watcher) -> None:
        self._watchers.append((opened, rolled_back))

    def see(self, statement: str) -> bool:
        """Take in a statement that is about to be executed; True if it opens a savepoint."""
        found = _STATEMENT.match(statement)
        if found is None:
            return False
        name = (found["quoted"] or found["ticked"] or found["bare"]).casefold()
        if found["opens"]:
            is_new = all(name != opened for opened, _ in self._open)
            token = name if is_new else f"{name} {len(self._open)}"
            self._open.append((name, token))
            for opened, _ in self._watchers:
                opened(token)
            return True
        place = self._place_of(name)
        token = self._open[place][1]
        if found["releases"]:
            del self._open[place:]
        else:
            del self._open[place + 1 :]
            for _, rolled_back in self._watchers:
                rolled_back(token)
        return False

    def _place_of(self, name: str) -> int:
        for place in reversed(range(len(self._open))):
            if self._open[place][0] == name:
                return place
        raise InvalidTxnState(f"savepoint {name} was not opened in this dual write")
