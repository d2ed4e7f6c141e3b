"""What each client has done so far, read from the history while it is still being written."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START = "start"
"""The phase in which everything begins."""


@dataclass
class Done:
    """What was begun since a phase began, and how much of that was committed and read by whom."""

    begun: set[str] = field(default_factory=set)
    committed: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        names = sorted(self.committed | self.read)
        told = (f"{n} {self.committed[n]} committed, {self.read[n]} read" for n in names)
        return "; ".join(told) or "nothing"


class Progress:
    """Counts for every phase of the history; a client keeps its name over all its lives.

    Only transactions count that begin after the phase does, and only their records: what a client had
    under way before it, or finds there, does not show that it still works.
    """

    def __init__(self, path: Path, writers: Sequence[str], readers: Sequence[str]) -> None:
        self._path = path
        self._writers = writers
        self._readers = readers
        self._place = 0
        self.since = {START: Done()}

    def missing(self, phase: str) -> list[str]:
        """Who has done nothing since it began; everybody where it has not begun."""
        return [*self.idle_writers(phase), *self.idle_readers(phase)]

    def idle_writers(self, phase: str) -> list[str]:
        committed = self._done(phase).committed
        return [f"{name} has committed nothing" for name in self._writers if not committed[name]]

    def idle_readers(self, phase: str) -> list[str]:
        read = self._done(phase).read
        return [f"{name} has read nothing" for name in self._readers if not read[name]]

    def _done(self, phase: str) -> Done:
        self._look()
        return self.since.get(phase, Done())

    def _look(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._place)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._place += len(whole)
        for text in whole.splitlines():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue  # a process was killed inside the write
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        match line["type"]:
            case "phase":
                self.since.setdefault(line["name"], Done())
            case "invoke":
                for done in self.since.values():
                    done.begun.add(_name(line))
            case "ok" | "fail" | "info":
                for done in self.since.values():
                    _count(line, done)


def _name(line: dict[str, Any]) -> str:
    return f"{line['process']}/{line['number']}"


def _count(line: dict[str, Any], done: Done) -> None:
    client = ".".join(line["process"].split(".")[:2])
    is_alone = ".alone" in line["process"]
    if line["type"] == "ok" and line["sends"] and not is_alone and _name(line) in done.begun:
        done.committed[client] += 1
    for _, seen in line["polls"]:
        done.read[client] += sum(value.rpartition(":")[0] in done.begun for _, value in seen)
