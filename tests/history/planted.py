"""Clean histories by chance, and one way per kind of anomaly to spoil one."""

from collections.abc import Callable
from random import Random

from tests.history.history import Assign, Consumed, History, Poll, Send, Txn, Watermark

KEYS = ("a/0", "a/1", "b/0")


class Maker:
    """A tiny model of a correct system: an append-only list per partition, atomic transactions."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.logs: dict[str, list[tuple[int, str]]] = {key: [] for key in KEYS}
        self.end = dict.fromkeys(KEYS, 0)
        self.history = History(rows=set())
        self.position: dict[tuple[str, str], int] = {}
        self.numbers: dict[str, int] = {}

    def next_txn(self, process: str) -> Txn:
        number = self.numbers.get(process, 0)
        self.numbers[process] = number + 1
        return Txn(process, number)

    def write(self, process: str) -> None:
        """A dual write that commits, fails, or is unknown and either."""
        txn = self.next_txn(process)
        txn.is_dual = self.random.random() < 0.5
        fate = self.random.choice(["ok", "ok", "ok", "fail", "unknown yes", "unknown no"])
        for n in range(self.random.randint(1, 4)):
            key = self.random.choice(KEYS)
            send = Send(key, f"{txn.name}:{n}", self.end[key])
            self.end[key] += 1
            txn.sends.append(send)
        for key in {s.key for s in txn.sends}:
            self.end[key] += 1  # the marker takes an offset
        if fate in ("ok", "unknown yes"):
            for send in txn.sends:
                self.logs[send.key].append((send.offset, send.value))
            if txn.is_dual and self.history.rows is not None:
                self.history.rows.add(txn.name)
        if fate.startswith("unknown"):
            for send in txn.sends:
                send.offset = -1
        txn.status = "ok" if fate == "ok" else "fail" if fate == "fail" else "info"
        self.history.events.append(txn)

    def read(self, process: str) -> None:
        txn = self.next_txn(process)
        txn.status = "ok"
        for key in KEYS:
            start = self.position.get((process, key), 0)
            log = self.logs[key]
            stop = min(len(log), start + self.random.randint(0, 6))
            if stop > start:
                txn.polls.append(Poll(key, log[start:stop]))
                self.position[process, key] = stop
        self.history.events.append(txn)

    def rewind(self, process: str) -> None:
        for key in KEYS:
            self.position[process, key] = 0
        self.history.events.append(Assign(process))

    def copy(self) -> None:
        """Consume a stretch of a/0 and write to b/0 in one transaction."""
        start = self.position.get(("copier", "a/0"), 0)
        stretch = self.logs["a/0"][start : start + 3]
        if not stretch:
            return
        txn = self.next_txn("copier")
        txn.status = "ok"
        txn.polls.append(Poll("a/0", stretch))
        txn.consumed.append(Consumed("group", "a/0", stretch[0][0], stretch[-1][0] + 1))
        for offset, _ in stretch:
            send = Send("b/0", f"{txn.name}:{offset}", self.end["b/0"])
            self.end["b/0"] += 1
            txn.sends.append(send)
            self.logs["b/0"].append((send.offset, send.value))
        self.end["b/0"] += 1
        self.position["copier", "a/0"] = start + len(stretch)
        self.history.events.append(txn)

    def watermark(self) -> None:
        key = self.random.choice(KEYS)
        self.history.events.append(Watermark("r", key, self.end[key], self.end[key]))


def clean(seed: int, steps: int = 60) -> History:
    """A history of a system without faults."""
    maker = Maker(seed)
    for _ in range(6):
        maker.write("w0")
    for _ in range(steps):
        match maker.random.randint(0, 7):
            case 0 | 1 | 2:
                maker.write(f"w{maker.random.randint(0, 2)}")
            case 3 | 4:
                maker.read(f"r{maker.random.randint(0, 1)}")
            case 5:
                maker.copy()
            case 6:
                maker.watermark()
            case 7:
                if maker.random.random() < 0.2:
                    maker.rewind("r0")
    maker.history.final = [Poll(key, list(log)) for key, log in maker.logs.items()]
    return maker.history


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


def poll_back(history: History) -> None:
    seen = _final(history, "a/0").seen
    history.events.append(Txn("r9", 0, "ok", polls=[Poll("a/0", [seen[1]])]))
    history.events.append(Txn("r9", 1, "ok", polls=[Poll("a/0", [seen[0]])]))


def send_back_inside(history: History) -> None:
    sends = [Send("a/0", "x", 40_001), Send("a/0", "y", 40_000)]
    history.events.append(Txn("w9", 0, "ok", sends=sends))


def send_back(history: History) -> None:
    history.events.append(Txn("w9", 0, "ok", sends=[Send("a/0", "x", 40_001)]))
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


def lso_regress(history: History) -> None:
    history.events += [Watermark("r", "a/0", 90_000, 90_000), Watermark("r", "a/0", 89_999, 90_000)]


def hw_regress(history: History) -> None:
    history.events += [Watermark("r", "a/0", 5, 90_000), Watermark("r", "a/0", 5, 89_999)]


def lso_above_hw(history: History) -> None:
    history.events.append(Watermark("r", "b/0", 90_001, 90_000))


def _copies(history: History) -> list[Txn]:
    return [t for t in history.txns if t.consumed]


def consumed_twice(history: History) -> None:
    first, second = _copies(history)[:2]
    second.consumed[0].start = first.consumed[0].start


def consumed_never(history: History) -> None:
    copy = _copies(history)[1]
    copy.consumed.clear()


PLANTED: dict[str, Callable[[History], None]] = {
    "G1a": aborted_read,
    "phantom": phantom,
    "lost-write": lost_write,
    "unseen": unseen,
    "duplicate": duplicate,
    "inconsistent-offsets": inconsistent_offsets,
    "precommitted-read": precommitted_read,
    "int-poll-skip": poll_skip_inside,
    "int-nonmonotonic-poll": poll_back_inside,
    "int-nonmonotonic-send": send_back_inside,
    "poll-skip": poll_skip,
    "nonmonotonic-poll": poll_back,
    "nonmonotonic-send": send_back,
    "G1c": circle,
    "torn": torn,
    "vanished": vanished,
    "row-without-records": row_without_records,
    "records-without-row": records_without_row,
    "lost-row": lost_row,
    "aborted-row": aborted_row,
    "lso-regress": lso_regress,
    "hw-regress": hw_regress,
    "lso-above-hw": lso_above_hw,
    "consumed-twice": consumed_twice,
    "consumed-never": consumed_never,
}
