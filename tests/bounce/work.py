"""What each client has done so far, read from the history while it is still being written."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any


class Work:
    """Counts commits and records seen; a client keeps its name over all its lives."""

    def __init__(self, history: Path) -> None:
        self._history = history
        self._place = 0
        self.done: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def look(self) -> None:
        """Take in what has been written since the last time."""
        with self._history.open("rb") as file:
            file.seek(self._place)
            for text in file:
                if not text.endswith(b"\n"):
                    break  # somebody is writing it
                self._place += len(text)
                try:
                    self._take(json.loads(text))
                except json.JSONDecodeError:
                    continue  # somebody was killed writing it

    def _take(self, line: dict[str, Any]) -> None:
        if line["type"] in ("ok", "fail", "info"):
            mine = self.done[line["process"].split(".")[0]]
            mine["committed"] += line["type"] == "ok" and line["sends"] != []
            mine["seen"] += sum(len(seen) for _, seen in line["polls"])
