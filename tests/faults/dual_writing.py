"""A process that writes orders to a database and to Kafka without end, and says how far it has come.

    python -m tests.faults.dual_writing CASE REPORT KAFKA_COMMIT [unsafe]

REPORT gets a line for every step, whole and at once: "begin 7", the steps inside the writer by name, then
"done 7" once the writer has reported the order as committed, or "undone 7". Every fifth order is taken back.
"""

import itertools
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text

from dualwrite import Rollback
from dualwrite.adapters.sql import sqlite
from tests.crash.places import Case

VALUES = (b"x", b"y")
UNSAFE_LEVEL = 1
"""SQLite's synchronous=NORMAL."""


@dataclass(frozen=True)
class Report:
    """What the process has said up to an instant."""

    lines: list[str]

    @classmethod
    def read(cls, path: Path) -> "Report":
        return cls(path.read_text().splitlines())

    def orders(self, word: str) -> set[int]:
        return {int(line.split()[1]) for line in self.lines if line.startswith(f"{word} ")}

    @property
    def is_inside(self) -> bool:
        """Whether a transaction is under way."""
        said = Counter(line.split()[0] for line in self.lines)
        return said["begin"] > said["done"] + said["undone"]

    @property
    def step(self) -> str:
        return self.lines[-1].split()[0]


def order(case, dw, place, number):
    """One order on both sides."""
    with dw.transaction() as tx:
        place.order(tx, number)
        for value in VALUES:
            tx.produce(case.topic, key=str(number), value=value)
        if number % 5 == 4:
            raise Rollback


def write(case, report, kafka_commit):
    descriptor = os.open(report, os.O_WRONLY | os.O_APPEND)

    def note(line):
        os.write(descriptor, f"{line}\n".encode())

    place = case.place
    with case.writer(place, on_step=note, kafka_commit=kafka_commit) as dw:
        for number in itertools.count():
            note(f"begin {number}")
            order(case, dw, place, number)
            note(f"{'undone' if number % 5 == 4 else 'done'} {number}")


def main():
    case = Case.from_json(sys.argv[1])
    if "unsafe" in sys.argv[4:]:
        # Past the store's guard; and a reader beside the writer, without which the last connection
        # to be closed would sync what is in the WAL.
        sqlite.EXTRA = UNSAFE_LEVEL
        beside = create_engine(case.address).connect()
        beside.execute(text("SELECT count(*) FROM sqlite_master"))
        beside.rollback()
    write(case, sys.argv[2], sys.argv[3])


if __name__ == "__main__":
    main()
