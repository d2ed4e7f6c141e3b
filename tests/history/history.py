"""What clients did and saw: one JSON line per event, and the same as objects.

Every event is written by one `write(2)` to a file opened for appending, so a SIGKILL of the client
leaves its last `invoke` behind. A transaction with an invoke and no end is *unknown* (`info`): it may
have committed. Treating it as failed is the mistake that most home-made checkers make.

Events:

    invoke / ok / fail / info   one transaction (or one plain poll): its sends and what it polled
    asking                      its commit is asked for now; until then nobody may have seen it
    assign                      a process starts to read somewhere else; its positions are forgotten
    watermark                   LSO and HW of a partition as one reader saw them
    phase                       something begins for everybody, such as trouble, or peace
    rows                        the transactions whose rows the database holds (final state)
    committed                   a group's offset for one partition (final state)
    reached                     the same of a group whose members commit what they have recorded as read
    final                       a read of everything after all was healed

The lines are in the order in which they were written, so a poll whose line stands before another's
`asking` has happened before it. Whoever was killed before it asked has not committed.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, Literal

Status = Literal["ok", "fail", "info"]
Seen = tuple[int, str]  # offset and value


@dataclass(slots=True)
class Send:
    """One record that a transaction wrote. `offset` is -1 where the client never learnt it."""

    key: str
    value: str
    offset: int = -1


@dataclass(slots=True)
class Poll:
    """What one poll of one partition returned, in order."""

    key: str
    seen: list[Seen]


@dataclass(slots=True)
class Consumed:
    """The input [start, end) whose offsets the transaction committed for a group (KIP-447)."""

    group: str
    key: str
    start: int
    end: int


@dataclass(slots=True)
class Txn:
    """One transaction, or a poll outside of one."""

    process: str
    number: int
    status: Status = "info"
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    consumed: list[Consumed] = field(default_factory=list)
    is_dual: bool = False
    """A database row belongs to it: row present if and only if its records are visible."""
    asked: int = 0
    """When its commit was asked for, counted in events; before that nobody may have seen it."""
    ended: int = 0
    """When it was over; everything that it polled was polled before that."""

    @property
    def name(self) -> str:
        return f"{self.process}/{self.number}"


@dataclass(slots=True)
class Watermark:
    reader: str
    key: str
    lso: int
    hw: int


@dataclass(slots=True)
class Assign:
    process: str
    from_start: bool = False
    """It reads from the first record on; otherwise nobody knows where it begins."""


Event = Txn | Watermark | Assign


@dataclass(slots=True)
class History:
    """Everything that was recorded; `events` in the order of completion."""

    events: list[Event] = field(default_factory=list)
    rows: set[str] | None = None
    """Names of the dual transactions whose row is in the database at the end; None if not asked."""
    committed: dict[tuple[str, str], int] | None = None
    """The offset of each group and partition at the end, -1 for none; None if not asked."""
    reached: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same of groups outside of transactions. The members of `g` are the processes `g.*`, and
    commit nothing before they have recorded it: all that is below has been read by one of them."""
    final: list[Poll] | None = None
    """A read_committed read of every partition from its beginning, after all was healed."""
    phases: dict[str, int] = field(default_factory=dict)
    """When each began, counted in events like `Txn.ended`."""

    @property
    def txns(self) -> Iterator[Txn]:
        return (event for event in self.events if isinstance(event, Txn))


class Recorder:
    """Appends events to a file. One per process; several may share the file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        # It begins a line of its own: a process that was killed inside a write has left half of one.
        os.write(self._fd, f"\n{json.dumps({'type': kind, **fields})}\n".encode())

    def invoke(self, txn: Txn) -> None:
        self.write("invoke", **_fields(txn))

    def ask(self, txn: Txn) -> None:
        """Say that the commit is asked for: before it, or it could be seen before it is said."""
        self.write("asking", process=txn.process, number=txn.number)

    def assign(self, process: str, *, from_start: bool = False) -> None:
        self.write("assign", process=process, from_start=from_start)

    def phase(self, name: str) -> None:
        self.write("phase", name=name)

    def complete(self, txn: Txn) -> None:
        self.write(txn.status, **_fields(txn))

    def close(self) -> None:
        os.close(self._fd)


def _fields(txn: Txn) -> dict[str, Any]:
    return {
        "process": txn.process,
        "number": txn.number,
        "sends": [[s.key, s.value, s.offset] for s in txn.sends],
        "polls": [[p.key, p.seen] for p in txn.polls],
        "consumed": [[c.group, c.key, c.start, c.end] for c in txn.consumed],
        "dual": txn.is_dual,
    }


def _poll(key: str, seen: list[list[Any]]) -> Poll:
    return Poll(intern(key), [(offset, intern(value)) for offset, value in seen])


def _txn(line: dict[str, Any], status: Status) -> Txn:
    # Each value stands in some ten lines; hours of them fit into memory if it is kept once.
    return Txn(
        process=intern(line["process"]),
        number=line["number"],
        status=status,
        sends=[Send(intern(key), intern(value), offset) for key, value, offset in line["sends"]],
        polls=[_poll(key, seen) for key, seen in line["polls"]],
        consumed=[Consumed(*c) for c in line["consumed"]],
        is_dual=line["dual"],
    )


class _Loader:
    """Puts lines together again."""

    def __init__(self) -> None:
        self.history = History()
        self._open: dict[str, Txn] = {}
        self._asked: dict[str, int] = {}

    def take(self, place: int, line: dict[str, Any]) -> None:
        history = self.history
        match line["type"]:
            case "invoke":
                txn = _txn(line, "info")
                self._open[txn.name] = txn
            case "asking":
                self._asked[f"{line['process']}/{line['number']}"] = place
            case "ok" | "fail" | "info" as status:
                txn = _txn(line, status)
                self._open.pop(txn.name, None)
                self._end(txn, place)
            case "assign":
                history.events.append(Assign(line["process"], line["from_start"]))
            case "watermark":
                history.events.append(
                    Watermark(line["reader"], line["key"], line["lso"], line["hw"])
                )
            case "phase":
                history.phases[line["name"]] = place
            case "rows":
                history.rows = (history.rows or set()) | set(line["txns"])
            case "committed":
                known = history.committed or {}
                history.committed = known | {(line["group"], line["key"]): line["offset"]}
            case "reached":
                history.reached[line["group"], line["key"]] = line["offset"]
            case "final":
                history.final = [*(history.final or []), _poll(line["key"], line["seen"])]

    def _end(self, txn: Txn, place: int) -> None:
        txn.ended = place
        asked = self._asked.pop(txn.name, None)
        if asked is not None:
            txn.asked = asked
        elif txn.sends:
            # A transaction whose commit nobody has asked for has not been committed.
            assert txn.status != "ok", f"{txn.name} was committed by nobody"
            txn.status = "fail"
        self.history.events.append(txn)

    def finish(self, place: int) -> History:
        for txn in self._open.values():
            self._end(txn, place)
        return self.history


def load(lines: Iterable[str]) -> History:
    """Read a recorded history. A torn line (SIGKILL inside the write) is left out."""
    loader = _Loader()
    place = 0
    for place, text in enumerate(lines):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        loader.take(place, line)
    return loader.finish(place + 1)
