"""Finds anomalies in a history, after Elle and Jepsen's Kafka workload, with cross-store checks added.

Values are unique per partition, so a value names its writer. Every poll was read_committed and counts,
even one of a transaction that failed: what a reader has seen must stay true. Sends count if their
transaction is `ok`, or unknown and one of its values was seen ("must have committed"). An offset that
was acknowledged counts whatever became of the transaction: it is never given to anything else.

What a group leaves out, be it across a rebalance, is judged by the offset that it has come to: of
copiers by the ranges that they consumed in their transactions, of others by what the members recorded
before they committed. Nobody judges that a group goes on: what is beyond its offset may be unread.

Kafka's model allows interleaved writes of concurrent transactions (G0) and they are no anomaly here.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.history.history import Assign, History, Poll, Seen, Send, Txn, Watermark


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding: what kind, and the facts that show it."""

    kind: str
    detail: str


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history; an empty list means that every promise held."""
    view = _View(history)
    found: list[Anomaly] = []
    for examine in (
        _phantoms_and_aborted_reads,
        _offsets,
        _lost,
        _own_writes,
        _early_reads,
        _inside_transactions,
        _readers,
        _producers,
        _cycles,
        _torn,
        _torn_reads,
        _rows,
        _watermarks,
        _stable_below_read,
        _consumed_once,
        _group_offsets,
        _group_skips,
    ):
        found += examine(view)
    return found


@dataclass(slots=True)
class _Run:
    """What one reader has seen in one go; `begin` is the position before the first, None if unknown."""

    reader: str
    begin: int | None
    polls: list[Poll] = field(default_factory=list)


class _View:
    """Indexes that several examinations share."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.txns = list(history.txns)
        self.final = history.final
        self.writer: dict[tuple[str, str], Txn] = {}
        self.sent: dict[tuple[str, str], Send] = {}
        for txn in self.txns:
            for send in txn.sends:
                self.writer[send.key, send.value] = txn
                self.sent[send.key, send.value] = send
        self.seen: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.seen_values: set[tuple[str, str]] = set()
        for poll in self.polls():
            for offset, value in poll.seen:
                self.seen[poll.key][offset].add(value)
                self.seen_values.add((poll.key, value))
        self.places = {
            (key, value): offset
            for key, by_offset in self.seen.items()
            for offset, values in by_offset.items()
            for value in values
        }
        """Where each value was seen."""
        self.runs = list(self._runs())
        self.offsets = {key: sorted(by_offset) for key, by_offset in self.seen.items()}

    def polls(self) -> Iterator[Poll]:
        for txn in self.txns:
            yield from txn.polls
        yield from self.final or ()

    def _runs(self) -> Iterator["_Run"]:
        """Between two assignments a reader goes on where it was, whatever becomes of its transactions."""
        runs: dict[str, list[_Run]] = defaultdict(list)
        for event in self.history.events:
            if isinstance(event, Assign):
                begin = -1 if event.from_start else None
                runs[event.process].append(_Run(event.process, begin))
            elif isinstance(event, Txn) and event.polls:
                mine = runs[event.process]
                if not mine:
                    mine.append(_Run(event.process, None))
                mine[-1].polls.extend(event.polls)
        for mine in runs.values():
            yield from mine
        if self.final is not None:
            yield _Run("the final read", -1, self.final)

    def place(self, send: Send) -> int:
        """Its offset by acknowledgement or by what was seen, -1 if nobody knows."""
        return send.offset if send.offset >= 0 else self.places.get((send.key, send.value), -1)

    def must_have_committed(self, txn: Txn) -> bool:
        if txn.status == "ok":
            return True
        return txn.status == "info" and any((s.key, s.value) in self.seen_values for s in txn.sends)

    def skipped(self, key: str, previous: int, offset: int) -> list[int]:
        """Offsets that somebody has seen between two that this reader saw one after the other."""
        offsets = self.offsets.get(key, [])
        return offsets[bisect_right(offsets, previous) : bisect_left(offsets, offset)]


def _phantoms_and_aborted_reads(view: _View) -> Iterator[Anomaly]:
    for key, value in sorted(view.seen_values):
        txn = view.writer.get((key, value))
        if txn is None:
            yield Anomaly("phantom", f"{value} in {key} was written by nobody")
        elif txn.status == "fail":
            yield Anomaly("G1a", f"{value} in {key} was read, its transaction {txn.name} failed")


def _offsets(view: _View) -> Iterator[Anomaly]:
    """An offset shows one value, and a value has one offset, by what was read and acknowledged."""
    holders: dict[tuple[str, int], set[str]] = defaultdict(set)
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for key, by_offset in view.seen.items():
        for offset, values in by_offset.items():
            holders[key, offset] |= values
            for value in values:
                places[key, value].add(offset)
    for txn in view.txns:
        for send in txn.sends:
            if send.offset >= 0:
                holders[send.key, send.offset].add(send.value)
                places[send.key, send.value].add(send.offset)
    for (key, offset), values in holders.items():
        if len(values) > 1:
            yield Anomaly("inconsistent-offsets", f"{key}@{offset} was {sorted(values)}")
    for (key, value), offsets in places.items():
        if len(offsets) > 1:
            yield Anomaly("duplicate", f"{value} in {key} at {sorted(offsets)}")


def _lost(view: _View) -> Iterator[Anomaly]:
    for txn in view.txns:
        if txn.status != "ok":
            continue
        for send in txn.sends:
            if (send.key, send.value) in view.seen_values:
                continue
            offsets = view.offsets.get(send.key)
            if offsets and 0 <= send.offset <= offsets[-1]:
                yield Anomaly("lost-write", f"{send.value} in {send.key}@{send.offset}")
            elif view.final is not None:
                yield Anomaly("unseen", f"{send.value} in {send.key} was never read")


def _own_writes(view: _View) -> Iterator[Anomaly]:
    for txn in view.txns:
        mine = {(s.key, s.value) for s in txn.sends}
        for poll in txn.polls:
            for _, value in poll.seen:
                if (poll.key, value) in mine:
                    yield Anomaly("precommitted-read", f"{txn.name} read its own {value}")


def _early_reads(view: _View) -> Iterator[Anomaly]:
    """Nobody sees a record before its commit was asked for, be it committed afterwards or not."""
    for reader in view.txns:
        for poll in reader.polls:
            for _, value in poll.seen:
                writer = view.writer.get((poll.key, value))
                if writer is not None and reader.ended < writer.asked:
                    detail = f"{reader.name} saw {value} before {writer.name} asked for its commit"
                    yield Anomaly("read-before-commit", detail)


def _order(
    view: _View,
    pairs: Iterable[tuple[str, list[Seen]]],
    kind: str,
    who: str,
    begin: int | None = None,
) -> Iterator[Anomaly]:
    """Positions must rise and leave nothing out, over several polls of one reader."""
    position: dict[str, int] = {}
    for key, seen in pairs:
        for offset, _ in seen:
            previous = position.get(key, begin)
            if previous is not None and offset <= previous:
                yield Anomaly(f"{kind}nonmonotonic-poll", f"{who} {key}: {offset} after {previous}")
            elif previous is not None and (left_out := view.skipped(key, previous, offset)):
                yield Anomaly(f"{kind}poll-skip", f"{who} {key}: {left_out} left out")
            position[key] = offset


def _inside_transactions(view: _View) -> Iterator[Anomaly]:
    for txn in view.txns:
        yield from _order(view, ((p.key, p.seen) for p in txn.polls), "int-", txn.name)
        last: dict[str, int] = {}
        for send in txn.sends:
            if txn.status == "fail" or send.offset < 0:
                continue
            if send.offset <= last.get(send.key, -1):
                yield Anomaly("int-nonmonotonic-send", f"{txn.name} {send.key}@{send.offset}")
            last[send.key] = send.offset


def _readers(view: _View) -> Iterator[Anomaly]:
    for run in view.runs:
        yield from _order(view, ((p.key, p.seen) for p in run.polls), "", run.reader, run.begin)


def _producers(view: _View) -> Iterator[Anomaly]:
    """What one producer writes to a partition stands there in the order of its transactions."""
    last: dict[tuple[str, str], int] = {}
    for txn in view.txns:
        if not view.must_have_committed(txn):
            continue
        found = [(s.key, view.place(s)) for s in txn.sends]
        for key, offset in found:
            if 0 <= offset <= last.get((txn.process, key), -1):
                yield Anomaly("nonmonotonic-send", f"{txn.name} {key}@{offset}")
        for key, offset in found:
            last[txn.process, key] = max(offset, last.get((txn.process, key), -1))


def _cycles(view: _View) -> Iterator[Anomaly]:
    """Transactions that read from each other in a circle (G1c, by write-read edges alone)."""
    reads_from: dict[str, set[str]] = defaultdict(set)
    for txn in view.txns:
        if not view.must_have_committed(txn):
            continue
        for poll in txn.polls:
            for _, value in poll.seen:
                writer = view.writer.get((poll.key, value))
                if writer is not None and writer is not txn:
                    reads_from[txn.name].add(writer.name)
    done: set[str] = set()
    for start in list(reads_from):
        cycle = _cycle_from(start, reads_from, done)
        if cycle:
            yield Anomaly("G1c", " <- ".join(cycle))


def _cycle_from(start: str, edges: dict[str, set[str]], done: set[str]) -> list[str]:
    """Depth first without recursion: histories are longer than Python's stack."""
    path: list[str] = []
    on_path: set[str] = set()
    stack: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        path.append(node)
        on_path.add(node)
        stack.append((node, iter(sorted(edges.get(node, ())))))

    if start not in done:
        enter(start)
    while stack:
        node, successors = stack[-1]
        for successor in successors:
            if successor in on_path:
                return [*path[path.index(successor) :], successor]
            if successor not in done:
                enter(successor)
                break
        else:
            stack.pop()
            path.pop()
            on_path.discard(node)
            done.add(node)
    return []


def _torn(view: _View) -> Iterator[Anomaly]:
    if view.final is None:
        return
    final = {(poll.key, value) for poll in view.final for _, value in poll.seen}
    for txn in view.txns:
        visible = [s for s in txn.sends if (s.key, s.value) in final]
        if visible and len(visible) < len(txn.sends):
            detail = f"{txn.name} shows {len(visible)} of {len(txn.sends)} records"
            yield Anomaly("torn", detail)
    for key, value in sorted(view.seen_values - final):
        yield Anomaly("vanished", f"{value} in {key} was read before and is gone at the end")


def _torn_reads(view: _View) -> Iterator[Anomaly]:
    """Of a transaction's records a reader has seen either all that it has passed, or none.

    It passes a record when its outcome is known, which is the same for all; how far it is in each
    partition does not matter.
    """
    for run in view.runs:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        seen: set[tuple[str, str]] = set()
        for poll in run.polls:
            for offset, value in poll.seen:
                first.setdefault(poll.key, offset)
                last[poll.key] = max(offset, last.get(poll.key, -1))
                seen.add((poll.key, value))
        writers = {txn.name: txn for place in seen if (txn := view.writer.get(place))}
        for name, txn in sorted(writers.items()):
            passed = [
                (s.key, s.value)
                for s in txn.sends
                if s.key in first
                and (first[s.key] if run.begin is None else run.begin + 1)
                <= view.place(s)
                <= last[s.key]
            ]
            if missing := [place for place in passed if place not in seen]:
                visible = len(passed) - len(missing)
                detail = f"{run.reader} saw {visible} of the {len(passed)} records of {name}"
                yield Anomaly("torn-read", f"{detail} that it has passed: not {missing}")


def _rows(view: _View) -> Iterator[Anomaly]:
    """The database and Kafka agree: a row if and only if its records are visible."""
    rows = view.history.rows
    if rows is None or view.final is None:
        return
    final = {(poll.key, value) for poll in view.final for _, value in poll.seen}
    for name in sorted(rows - {txn.name for txn in view.txns if txn.is_dual}):
        yield Anomaly("phantom-row", f"{name} was written by nobody")
    for txn in view.txns:
        if not txn.is_dual:
            continue
        is_visible = any((s.key, s.value) in final for s in txn.sends)
        if txn.name in rows and txn.sends and not is_visible:
            yield Anomaly("row-without-records", txn.name)
        if txn.name not in rows and is_visible:
            yield Anomaly("records-without-row", txn.name)
        if txn.status == "ok" and txn.name not in rows:
            yield Anomaly("lost-row", f"{txn.name} was acknowledged")
        if txn.status == "fail" and txn.name in rows:
            yield Anomaly("aborted-row", f"{txn.name} was refused, its row is there")


def _watermarks(view: _View) -> Iterator[Anomaly]:
    lso: dict[str, int] = {}
    hw: dict[str, int] = {}
    for event in view.history.events:
        if not isinstance(event, Watermark):
            continue
        if event.lso > event.hw:
            yield Anomaly("lso-above-hw", f"{event.key}: {event.lso} > {event.hw}")
        if event.lso < lso.get(event.key, 0):
            yield Anomaly("lso-regress", f"{event.key}: {event.lso} after {lso[event.key]}")
        if event.hw < hw.get(event.key, 0):
            yield Anomaly("hw-regress", f"{event.key}: {event.hw} after {hw[event.key]}")
        lso[event.key] = max(event.lso, lso.get(event.key, 0))
        hw[event.key] = max(event.hw, hw.get(event.key, 0))


def _stable_below_read(view: _View) -> Iterator[Anomaly]:
    """What somebody has read stays below the last stable offset.

    An offset that was asked for after an earlier answer had come is newer than all that was read
    before that answer.
    """
    read: dict[str, int] = {}
    before_answer: dict[tuple[str, str], int] = {}
    for event in view.history.events:
        if isinstance(event, Txn):
            for poll in event.polls:
                if poll.seen:
                    last = max(offset for offset, _ in poll.seen)
                    read[poll.key] = max(last, read.get(poll.key, -1))
        elif isinstance(event, Watermark):
            asked_by = event.reader, event.key
            known = before_answer.get(asked_by, -1)
            if event.lso <= known:
                detail = f"{event.key}: {event.lso}, and {known} was read before"
                yield Anomaly("lso-below-read", detail)
            before_answer[asked_by] = read.get(event.key, -1)


def _consumed_ranges(view: _View) -> dict[tuple[str, str], list[tuple[int, int, str]]]:
    """What committed consume-transform-produce transactions have consumed, in order."""
    ranges: dict[tuple[str, str], list[tuple[int, int, str]]] = defaultdict(list)
    for txn in view.txns:
        if view.must_have_committed(txn):
            for part in txn.consumed:
                ranges[part.group, part.key].append((part.start, part.end, txn.name))
    for parts in ranges.values():
        parts.sort()
    return ranges


def _consumed_once(view: _View) -> Iterator[Anomaly]:
    """Input ranges neither overlap nor leave gaps, from the first record on."""
    for (group, key), parts in _consumed_ranges(view).items():
        if view.skipped(key, -1, parts[0][0]):
            yield Anomaly("consumed-never", f"{group} {key}@0..{parts[0][0] - 1}")
        for (_, end, first), (start, _, second) in pairwise(parts):
            if start < end:
                yield Anomaly("consumed-twice", f"{group} {key}@{start}: {first} and {second}")
            elif start > end and view.skipped(key, end - 1, start):
                yield Anomaly("consumed-never", f"{group} {key}@{end}..{start - 1}")


def _group_offsets(view: _View) -> Iterator[Anomaly]:
    """A group's offset is the end of what it has consumed: it was committed with the records."""
    if view.history.committed is None:
        return
    ends = {place: parts[-1][1] for place, parts in _consumed_ranges(view).items()}
    for place, offset in view.history.committed.items():
        end = ends.get(place, 0)
        detail = f"{place[0]} {place[1]}: {offset}, its records end at {end}"
        if offset > end:
            yield Anomaly("offsets-without-records", detail)
        elif max(offset, 0) < end:
            yield Anomaly("records-without-offsets", detail)


def _group_skips(view: _View) -> Iterator[Anomaly]:
    """Whatever is below the offset of a group was read by one of its members."""
    for (group, key), offset in view.history.reached.items():
        read = {
            place
            for txn in view.txns
            if txn.process.startswith(f"{group}.")
            for poll in txn.polls
            if poll.key == key
            for place, _ in poll.seen
        }
        if left_out := [place for place in view.skipped(key, -1, offset) if place not in read]:
            yield Anomaly("group-skip", f"{group} {key} has come to {offset} without {left_out}")
