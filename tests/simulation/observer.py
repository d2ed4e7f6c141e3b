"""A reader that looks during the run, at both isolation levels, and believes nothing."""

from typing import Any, NamedTuple

from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from dualwrite.wire.records import EndMarker, batches, records
from tests.simulation.database import Database
from tests.simulation.ledger import Ledger
from tests.simulation.requests import offset_request
from tests.simulation.world import PARTITIONS, TOPICS, Send, Sleep, Violation, World

Where = tuple[str, int]


class Seen(NamedTuple):
    """One record or marker at an offset."""

    producer_id: int
    producer_epoch: int
    value: bytes | None
    commit: bool | None  # of a marker


class Read(NamedTuple):
    """What one answer about one partition has shown: its records from `position` on, up to `end`."""

    where: Where
    isolation: int
    position: int
    end: int
    shown: list[int]


class Look(NamedTuple):
    """How far the partitions had got at one moment."""

    high_watermarks: dict[Where, int]
    last_stable: dict[Where, int]


def fetch_request(positions: dict[Where, int], isolation: int, wait_ms: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        isolation_level=isolation,
        topics=[
            FetchTopic(
                topic=name,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=positions.get((name, index), 0),
                        partition_max_bytes=1 << 20,
                    )
                    for index in range(count)
                ],
            )
            for name, count in TOPICS.items()
        ],
    )


def contents(data: Any) -> list[tuple[int, Seen]]:
    """Everything in a fetched stretch of log, by offset."""
    found = []
    for part in data if isinstance(data, list) else [data]:
        view = memoryview(part)
        for position, header in batches(view):
            batch = view[position : position + header.length]
            pair = (header.producer_id, header.producer_epoch)
            if header.is_control:
                marker = EndMarker.parse(batch)
                assert marker is not None
                found.append((header.base_offset, Seen(*pair, None, marker.commit)))
                continue
            for record in records(batch):
                offset = header.base_offset + record.offset_delta
                found.append((offset, Seen(*pair, record.value, None)))
    return found


def committed(stretch: list[tuple[int, Seen]], aborted: Any) -> list[tuple[int, bytes]]:
    """What a read_committed consumer hands to its application (KIP-98)."""
    starts = sorted((entry.first_offset, entry.producer_id) for entry in aborted or ())
    active: set[int] = set()
    result = []
    for offset, seen in stretch:
        while starts and starts[0][0] <= offset:
            active.add(starts.pop(0)[1])
        if seen.commit is not None:
            if not seen.commit:
                active.discard(seen.producer_id)
        elif seen.producer_id not in active and seen.value is not None:
            result.append((offset, seen.value))
    return result


class Observer:
    def __init__(self, world: World, ledger: Ledger, database: Database) -> None:
        self._world = world
        self._ledger = ledger
        self._database = database
        self.log: dict[Where, dict[int, Seen]] = {where: {} for where in PARTITIONS}
        self.committed: dict[Where, dict[int, bytes]] = {where: {} for where in PARTITIONS}
        self.reads: list[Read] = []
        self.looks: list[Look] = []
        self.positions: dict[int, dict[Where, int]] = {0: {}, 1: {}}
        self._offset = -1
        self._high: dict[Where, int] = {}
        self._stable: dict[Where, int] = {}

    def steps(self) -> Any:
        """Look again and again, till the end of the world."""
        random = self._world.random
        while True:
            yield Sleep(random.choice([3, 10, 30, 100, 500]))
            if random.random() < 0.35:
                reply = yield Send(ApiKey.OFFSET_FETCH, 8, offset_request(), 1_000)
                if reply is not None:
                    self.take_offset(reply)
                continue
            isolation = random.choice([0, 1, 1])
            positions = self._positions(isolation)
            request = fetch_request(positions, isolation, random.choice([0, 0, 50, 400]))
            reply = yield Send(ApiKey.FETCH, 12, request, 1_000)
            if reply is not None:
                self.take(reply, isolation, positions)

    def _positions(self, isolation: int) -> dict[Where, int]:
        """Where it has got to; now and then further back: an offset always shows the same bytes."""
        kept = self.positions[isolation]
        draw = self._world.random.random()
        if draw < 0.15:
            return {}
        if draw < 0.3:
            return {where: self._world.random.randint(0, end) for where, end in kept.items()}
        return dict(kept)

    def take_offset(self, reply: Any) -> None:
        """A group that only moves forward is never seen going back."""
        (group,) = reply.groups
        part = None if group.error_code else group.topics[0].partitions[0]
        if part is None or part.error_code:
            return
        if part.committed_offset < self._offset:
            raise Violation(f"the group's offset goes back to {part.committed_offset}")
        self._offset = part.committed_offset

    def take(self, reply: Any, isolation: int, positions: dict[Where, int]) -> None:
        """Check one answer against everything that was seen before."""
        high: dict[Where, int] = {}
        stable: dict[Where, int] = {}
        for topic in reply.responses:
            for part in topic.partitions:
                where = (topic.topic, part.partition_index)
                if part.error_code == 56:
                    continue
                if part.error_code:
                    raise Violation(f"Fetch of {where} is told {part.error_code}")
                high[where] = part.high_watermark
                stable[where] = part.last_stable_offset
                self._take_partition(where, part, isolation, positions.get(where, 0))
        if len(high) == len(PARTITIONS):
            self.looks.append(Look(high, stable))

    def _take_partition(self, where: Where, part: Any, isolation: int, position: int) -> None:
        high, stable = part.high_watermark, part.last_stable_offset
        if high < self._high.get(where, 0) or stable < self._stable.get(where, 0):
            raise Violation(f"{where} goes back to {stable}/{high}")
        if stable > high:
            raise Violation(f"{where} is stable above its high watermark: {stable}/{high}")
        self._high[where], self._stable[where] = high, stable
        stretch = contents(part.records) if part.records else []
        limit = stable if isolation else high
        for offset, seen in stretch:
            if offset >= limit:
                raise Violation(f"{where} shows {offset} above {limit}")
            known = self.log[where].setdefault(offset, seen)
            if known != seen:
                raise Violation(f"{where} has {seen} at {offset}, it was {known}")
        if not stretch:
            if position < limit:
                raise Violation(f"{where} shows nothing from {position} to {limit}")
            return
        end = stretch[-1][0] + 1
        kept = self.positions[isolation]
        kept[where] = max(kept.get(where, 0), end)
        if isolation:
            found = committed(stretch, part.aborted_transactions)
            for offset, value in found:
                if offset >= position:
                    self._take_committed(where, offset, value)
        else:
            found = [(offset, seen.value) for offset, seen in stretch if seen.value is not None]
        shown = [offset for offset, _ in found if offset >= position]
        self.reads.append(Read(where, isolation, position, end, shown))

    def _take_committed(self, where: Where, offset: int, value: bytes) -> None:
        if self.committed[where].setdefault(offset, value) != value:
            raise Violation(f"{where} shows another value at {offset}")
        if value.startswith(b"source"):
            return
        intent = self._ledger.of_value(value)
        if intent.kind == "dual" and intent.name not in self._database.rows:
            raise Violation(f"{value!r} is visible and its database never decided so")
        if intent.kind == "plain" and not intent.commit_asked:
            raise Violation(f"{value!r} is visible and its client never asked for it")
