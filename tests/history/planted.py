"""Clean histories by chance, and one way per kind of anomaly to spoil one."""

from collections.abc import Callable
from random import Random

from tests.history.history import Assign, Consumed, History, Poll, Seen, Send, Txn, Watermark

KEYS = ("a/0", "a/1", "b/0")
WRITERS = ("w0", "w1", "w2")
GROUP = "members"


class Maker:
    """A tiny model of a correct system: a log per partition, transactions that overlap in it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.logs: dict[str, list[tuple[int, str, Txn]]] = {key: [] for key in KEYS}
        self.end = dict.fromkeys(KEYS, 0)
        self.history = History(rows=set(), committed={})
        self.position: dict[tuple[str, str], int] = {}
        self.numbers: dict[str, int] = {}
        self.open: dict[str, Txn] = {}
        self.committed: set[str] = set()
        self.now = 0

    def next_txn(self, process: str) -> Txn:
        number = self.numbers.get(process, 0)
        self.numbers[process] = number + 1
        return Txn(process, number)

    def over(self, txn: Txn) -> None:
        self.now += 1
        txn.ended = self.now
        self.history.events.append(txn)

    def append(self, txn: Txn, key: str, value: str) -> None:
        self.logs[key].append((self.end[key], value, txn))
        txn.sends.append(Send(key, value, self.end[key]))
        self.end[key] += 1

    def write(self, process: str) -> None:
        """One more step of a dual write: it begins, sends a record, or ends."""
        txn = self.open.get(process)
        if txn is None:
            self.open[process] = txn = self.next_txn(process)
            txn.is_dual = self.random.random() < 0.5
        if not txn.sends or (len(txn.sends) < 4 and self.random.random() < 0.5):
            self.append(txn, self.random.choice(KEYS), f"{txn.name}:{len(txn.sends)}")
        else:
            self.finish(process)

    def finish(self, process: str) -> None:
        """It commits, fails, or is unknown and either."""
        txn = self.open.pop(process)
        fate = self.random.choice(["ok", "ok", "ok", "fail", "unknown yes", "unknown no"])
        self.now += 1
        txn.asked = self.now
        if fate in ("ok", "unknown yes"):
            self.committed.add(txn.name)
            if txn.is_dual and self.history.rows is not None:
                self.history.rows.add(txn.name)
        for key in {s.key for s in txn.sends}:
            self.end[key] += 1  # the marker takes an offset
        if fate.startswith("unknown"):
            for send in txn.sends:
                send.offset = -1
        txn.status = "ok" if fate == "ok" else "fail" if fate == "fail" else "info"
        self.over(txn)

    def stable(self, key: str) -> int:
        return min(
            [offset for offset, _, txn in self.logs[key] if txn in self.open.values()],
            default=self.end[key],
        )

    def visible(self, key: str, start: int = 0) -> list[Seen]:
        stable = self.stable(key)
        return [
            (offset, value)
            for offset, value, txn in self.logs[key]
            if start <= offset < stable and txn.name in self.committed
        ]

    def take(self, process: str, key: str, count: int) -> list[Seen]:
        """What a reader gets next."""
        seen = self.visible(key, self.position.get((process, key), 0))[:count]
        if seen:
            self.position[process, key] = seen[-1][0] + 1
        return seen

    def read(self, process: str) -> None:
        txn = self.next_txn(process)
        txn.status = self.random.choice(["ok", "ok", "fail"])
        for key in KEYS:
            if seen := self.take(process, key, self.random.randint(0, 6)):
                txn.polls.append(Poll(key, seen))
        self.over(txn)

    def rewind(self, process: str) -> None:
        for key in KEYS:
            self.position[process, key] = 0
        self.history.events.append(Assign(process, from_start=True))

    def copy(self) -> None:
        """Consume a stretch of a/0 and write to b/0 in one transaction."""
        stretch = self.take("copier", "a/0", 3)
        if not stretch:
            return
        txn = self.next_txn("copier")
        txn.status = "ok"
        txn.polls.append(Poll("a/0", stretch))
        part = Consumed("group", "a/0", stretch[0][0], stretch[-1][0] + 1)
        txn.consumed.append(part)
        for offset, _ in stretch:
            self.append(txn, "b/0", f"{txn.name}:{offset}")
        self.now += 1
        txn.asked = self.now
        self.end["b/0"] += 1
        self.committed.add(txn.name)
        assert self.history.committed is not None
        self.history.committed["group", "a/0"] = part.end
        self.over(txn)

    def consume(self) -> None:
        """A member gets a partition, reads from the group's offset on, and may die before it commits."""
        member = f"{GROUP}.{self.random.randint(0, 1)}"
        key = self.random.choice(KEYS)
        start = self.history.reached.get((GROUP, key), 0)
        self.history.events.append(Assign(member))
        if seen := self.visible(key, start)[: self.random.randint(0, 6)]:
            txn = self.next_txn(member)
            txn.status = "ok"
            txn.polls.append(Poll(key, seen))
            self.over(txn)
            if self.random.random() < 0.7:
                self.history.reached[GROUP, key] = seen[-1][0] + 1

    def watermark(self) -> None:
        key = self.random.choice(KEYS)
        self.history.events.append(Watermark("r", key, self.stable(key), self.end[key]))

    def result(self) -> History:
        for process in list(self.open):
            self.finish(process)
        self.history.final = [Poll(key, self.visible(key)) for key in KEYS]
        return self.history


def clean(seed: int, steps: int = 60) -> History:
    """A history of a system without faults."""
    maker = Maker(seed)
    for _ in range(steps + 20):
        match maker.random.randint(0, 11):
            case 0 | 1 | 2 | 3 | 4 | 5:
                maker.write(maker.random.choice(WRITERS))
            case 6 | 7:
                maker.read(f"r{maker.random.randint(0, 1)}")
            case 8:
                maker.copy()
            case 9:
                maker.watermark()
            case 10:
                if maker.random.random() < 0.2:
                    maker.rewind("r0")
            case 11:
                maker.consume()
    return maker.result()


def _ok(history: History, sends: int = 1, *, dual: bool = False) -> Txn:
    """A committed transaction whose records somebody can see."""
    return next(
        t
        for t in history.txns
        if t.status == "ok" and len(t.sends) >= sends and not t.consumed and (t.is_dual or not dual)
    )


def _everywhere(history: History) -> list[Poll]:
    return [p for t in history.txns for p in t.polls] + (history.final or [])


def _hide(history: History, key: str, value: str) -> None:
    for poll in _everywhere(history):
        if poll.key == key:
            poll.seen = [(o, v) for o, v in poll.seen if v != value]


def _final(history: History, key: str) -> Poll:
    return next(p for p in history.final or [] if p.key == key)


def aborted_read(history: History) -> None:
    txn = _ok(history)
    txn.status = "fail"


def phantom(history: History) -> None:
    _final(history, "a/0").seen.append((10_000, "nobody's"))


def lost_write(history: History) -> None:
    send = _ok(history).sends[0]
    _hide(history, send.key, send.value)


def unseen(history: History) -> None:
    history.events.append(Txn("w9", 0, "ok", sends=[Send("a/0", "late", 20_000)]))


def duplicate(history: History) -> None:
    send = _ok(history).sends[0]
    _final(history, send.key).seen.append((30_000, send.value))


def inconsistent_offsets(history: History) -> None:
    offset, _ = _final(history, "a/0").seen[0]
    history.events.append(Txn("w9", 0, "ok", sends=[Send("a/0", "other", offset)]))


def changed_bytes(history: History) -> None:
    offset, _ = _final(history, "a/1").seen[0]
    history.events.append(Txn("w9", 0, "info", sends=[Send("a/1", "other")]))
    history.events.append(Txn("r9", 0, "ok", polls=[Poll("a/1", [(offset, "other")])]))


def acknowledged_elsewhere(history: History) -> None:
    """The broker named one offset, and the record stands at another."""
    _ok(history).sends[0].offset = 60_000


def offset_given_twice(history: History) -> None:
    """An offset of an aborted record is given to a committed one."""
    send = next(s for t in history.txns if t.status == "fail" for s in t.sends)
    send.key, send.offset = "a/0", _final(history, "a/0").seen[0][0]


def read_before_commit(history: History) -> None:
    """Somebody has seen what was still open then, and was committed later."""
    txn = next(t for t in history.txns if t.asked > 1 and _is_visible(history, t, 1))
    send = txn.sends[0]
    seen = next(s for s in _final(history, send.key).seen if s[1] == send.value)
    early = Txn("r9", 0, "ok", polls=[Poll(send.key, [seen])], ended=txn.asked - 1)
    history.events.insert(0, early)


def precommitted_read(history: History) -> None:
    txn = _ok(history)
    send = txn.sends[0]
    txn.polls.append(Poll(send.key, [(send.offset, send.value)]))


def poll_skip_inside(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "fail", polls=[Poll("a/0", [seen[0], seen[2]])]))


def poll_back_inside(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "fail", polls=[Poll("a/0", [seen[1], seen[0]])]))


def poll_skip(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "ok", polls=[Poll("a/0", [seen[0]])]))
    history.events.append(Txn("r9", 1, "ok", polls=[Poll("a/0", [seen[2]])]))


def beginning_left_out(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Assign("r9", from_start=True))
    history.events.append(Txn("r9", 0, "ok", polls=[Poll("a/0", [seen[1]])]))


def skip_after_a_failed_transaction(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "fail", polls=[Poll("a/0", [seen[0]])]))
    history.events.append(Txn("r9", 1, "ok", polls=[Poll("a/0", [seen[2]])]))


def poll_back(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "ok", polls=[Poll("a/0", [seen[1]])]))
    history.events.append(Txn("r9", 1, "ok", polls=[Poll("a/0", [seen[0]])]))


def repeated_at_the_end(history: History) -> None:
    final = _final(history, "a/0")
    final.seen.append(final.seen[-1])


def disorder_at_the_end(history: History) -> None:
    seen = _final(history, "a/0").seen
    seen[0], seen[1] = seen[1], seen[0]


def send_back_inside(history: History) -> None:
    sends = [Send("a/0", "x", 40_001), Send("a/0", "y", 40_000)]
    history.events.append(Txn("w9", 0, "ok", sends=sends))


def send_back(history: History) -> None:
    history.events.append(Txn("w9", 0, "ok", sends=[Send("a/0", "x", 40_001)]))
    history.events.append(Txn("w9", 1, "ok", sends=[Send("a/0", "y", 40_000)]))


def unknown_send_back(history: History) -> None:
    """The offset of the first was never told, but somebody has read it."""
    _final(history, "a/0").seen += [(40_000, "y"), (40_001, "x")]
    history.events.append(Txn("w9", 0, "info", sends=[Send("a/0", "x")]))
    history.events.append(Txn("w9", 1, "ok", sends=[Send("a/0", "y", 40_000)]))


def circle(history: History) -> None:
    """Two transactions that each read what the other wrote."""
    one, two = Send("a/0", "one", 50_000), Send("a/1", "two", 50_000)
    history.events.append(Txn("w8", 0, "ok", sends=[one], polls=[Poll("a/1", [(50_000, "two")])]))
    history.events.append(Txn("w9", 0, "ok", sends=[two], polls=[Poll("a/0", [(50_000, "one")])]))
    _final(history, "a/0").seen.append((50_000, "one"))
    _final(history, "a/1").seen.append((50_000, "two"))


def torn(history: History) -> None:
    txn = next(t for t in history.txns if t.status == "info" and _is_visible(history, t, 2))
    _hide(history, txn.sends[0].key, txn.sends[0].value)


def torn_read(history: History) -> None:
    """One reader passes a record without seeing it, and nobody reads everything at the end."""
    final = {poll.key: poll.seen for poll in history.final or []}
    txn = next(
        t
        for t in history.txns
        if t.status == "ok"
        and _is_visible(history, t, 2)
        and final[t.sends[0].key][-1][1] != t.sends[0].value
    )
    hidden = txn.sends[0]
    history.events.append(Assign("r9", from_start=True))
    history.events.append(Txn("r9", 0, "ok", polls=history.final or []))
    history.final = None
    _hide(history, hidden.key, hidden.value)


def _is_visible(history: History, txn: Txn, sends: int) -> bool:
    final = {(p.key, v) for p in history.final or [] for _, v in p.seen}
    return len(txn.sends) >= sends and all((s.key, s.value) in final for s in txn.sends)


def vanished(history: History) -> None:
    for txn in history.txns:
        for poll in txn.polls:
            for _, value in poll.seen:
                final = _final(history, poll.key)
                final.seen = [(o, v) for o, v in final.seen if v != value]
                return


def row_without_records(history: History) -> None:
    txn = _ok(history, dual=True)
    for send in txn.sends:
        _hide(history, send.key, send.value)


def records_without_row(history: History) -> None:
    assert history.rows is not None
    txn = next(
        t for t in history.txns if t.is_dual and t.status == "info" and _is_visible(history, t, 1)
    )
    history.rows.discard(txn.name)


def lost_row(history: History) -> None:
    assert history.rows is not None
    history.rows.discard(_ok(history, dual=True).name)


def aborted_row(history: History) -> None:
    assert history.rows is not None
    history.rows.add(next(t for t in history.txns if t.is_dual and t.status == "fail").name)


def phantom_row(history: History) -> None:
    assert history.rows is not None
    history.rows.add("w9/1")


def all_rows_lost(history: History) -> None:
    history.rows = set()


def lso_regress(history: History) -> None:
    history.events += [Watermark("r", "a/0", 90_000, 90_000), Watermark("r", "a/0", 89_999, 90_000)]


def hw_regress(history: History) -> None:
    history.events += [Watermark("r", "a/0", 5, 90_000), Watermark("r", "a/0", 5, 89_999)]


def lso_above_hw(history: History) -> None:
    history.events.append(Watermark("r", "b/0", 90_001, 90_000))


def lso_below_read(history: History) -> None:
    """Nobody looked while it was higher, but somebody has read there."""
    history.events += [
        Txn("r9", 0, "ok", polls=[Poll("c/0", [(7, "seven")])]),
        Watermark("r", "c/0", 5, 90_000),
        Watermark("r", "c/0", 5, 90_000),
    ]


def _copies(history: History) -> list[Txn]:
    return [t for t in history.txns if t.consumed]


def consumed_twice(history: History) -> None:
    first, second = _copies(history)[:2]
    second.consumed[0].start = first.consumed[0].start


def consumed_never(history: History) -> None:
    copy = _copies(history)[1]
    copy.consumed.clear()


def beginning_never_consumed(history: History) -> None:
    copy = _copies(history)[0]
    copy.consumed.clear()


def _move_group(history: History, by: int) -> None:
    assert history.committed is not None
    history.committed["group", "a/0"] += by


def left_out_across_a_rebalance(history: History) -> None:
    """The first member committed more than it had read, the second went on from there."""
    seen = _final(history, "a/0").seen
    history.events.append(Assign("others.0"))
    history.events.append(Txn("others.0", 0, "ok", polls=[Poll("a/0", seen[:1])]))
    history.events.append(Assign("others.1"))
    history.events.append(Txn("others.1", 0, "ok", polls=[Poll("a/0", seen[2:3])]))
    history.reached["others", "a/0"] = seen[2][0] + 1


def offsets_without_records(history: History) -> None:
    _move_group(history, 1)


def records_without_offsets(history: History) -> None:
    _move_group(history, -1)


PLANTED: tuple[tuple[str, Callable[[History], None]], ...] = (
    ("G1a", aborted_read),
    ("phantom", phantom),
    ("lost-write", lost_write),
    ("unseen", unseen),
    ("duplicate", duplicate),
    ("duplicate", acknowledged_elsewhere),
    ("inconsistent-offsets", inconsistent_offsets),
    ("inconsistent-offsets", changed_bytes),
    ("inconsistent-offsets", offset_given_twice),
    ("read-before-commit", read_before_commit),
    ("precommitted-read", precommitted_read),
    ("int-poll-skip", poll_skip_inside),
    ("int-nonmonotonic-poll", poll_back_inside),
    ("int-nonmonotonic-send", send_back_inside),
    ("poll-skip", poll_skip),
    ("poll-skip", beginning_left_out),
    ("poll-skip", skip_after_a_failed_transaction),
    ("nonmonotonic-poll", poll_back),
    ("nonmonotonic-poll", repeated_at_the_end),
    ("nonmonotonic-poll", disorder_at_the_end),
    ("nonmonotonic-send", send_back),
    ("nonmonotonic-send", unknown_send_back),
    ("G1c", circle),
    ("torn", torn),
    ("torn-read", torn_read),
    ("vanished", vanished),
    ("row-without-records", row_without_records),
    ("records-without-row", records_without_row),
    ("records-without-row", all_rows_lost),
    ("lost-row", lost_row),
    ("aborted-row", aborted_row),
    ("phantom-row", phantom_row),
    ("lso-regress", lso_regress),
    ("hw-regress", hw_regress),
    ("lso-above-hw", lso_above_hw),
    ("lso-below-read", lso_below_read),
    ("consumed-twice", consumed_twice),
    ("consumed-never", consumed_never),
    ("consumed-never", beginning_never_consumed),
    ("offsets-without-records", offsets_without_records),
    ("records-without-offsets", records_without_offsets),
    ("group-skip", left_out_across_a_rebalance),
)
