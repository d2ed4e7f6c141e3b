"""What the clients of a history meant to happen; the checks compare the logs with it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Intent:
    """One transaction as its client saw it."""

    name: str
    transactional_id: str
    number: int  # among those of its id, in the order in which they began
    kind: str  # "dual": the database decides; "plain": its client's EndTxn does
    records: list[tuple[str, int, bytes]] = field(default_factory=list)
    commit_asked: bool = False
    outcome: str = "unknown"  # of a plain one: "committed", "aborted", "unknown"
    source: tuple[int, int] | None = None  # of a copier: the input's offsets from, to


class Ledger:
    """All transactions by name. A record's value begins with the name of its transaction."""

    def __init__(self) -> None:
        self.intents: dict[str, Intent] = {}
        self._count: dict[str, int] = {}

    def begin(self, transactional_id: str, kind: str) -> Intent:
        number = self._count[transactional_id] = self._count.get(transactional_id, 0) + 1
        intent = Intent(f"{transactional_id}#{number}", transactional_id, number, kind)
        self.intents[intent.name] = intent
        return intent

    def of_value(self, value: bytes) -> Intent:
        return self.intents[value.decode().partition("/")[0]]
