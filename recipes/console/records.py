"""Records of a partition as they lie there, each marked with what became of its transaction.

Consumers of any isolation level hide what an operator wants to see: markers, aborted records, and
which transaction an open record belongs to. So this fetches the batches themselves.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dualwrite.connection import Connection
from dualwrite.errors import DualWriteError
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)
from dualwrite.wire.records import (
    BatchError,
    BatchHeader,
    EndMarker,
    batches,
    records,
    timestamp_of,
)

PAGE_RECORDS: Final = 50
FETCH_BYTES: Final = 1 << 20
DECOMPRESSED_MAX: Final = 8 << 20
SHOWN_CHARS: Final = 2000
SHOWN_HEADERS: Final = 20
_FETCH_VERSION: Final = 11  # the newest that names topics by name in every cluster
_READ_UNCOMMITTED: Final = 0
_READ_COMMITTED: Final = 1
_VISIBLE: Final = ("", "committed", "damaged")


PartitionName = tuple[str, int]


class ClusterUnavailable(Exception):
    """The cluster gave no answer, or not the one that was asked for."""


class ClusterUnreachable(ClusterUnavailable):
    """The cluster gave no answer to the first question."""


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record as text, with what a read_committed reader makes of it."""

    offset: int
    time: str
    fate: str
    """"" for a plain record, else committed, aborted, open, waiting, a marker's kind, or damaged."""
    transaction: str = ""
    """Transactional id of an open record, where it is known."""
    producer: str = ""
    key: str = ""
    value: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Records from one offset on, and where the next page begins."""

    records: tuple[ShownRecord, ...]
    next_offset: int
    last_stable: int
    high_watermark: int
    start: int


def browse(
    config: Mapping[str, Any],
    leader: str,
    name: PartitionName,
    offset: int,
    *,
    committed_only: bool,
    opened: Mapping[int, tuple[int, str]],
) -> Page:
    """Read a page from a partition's leader.

    `opened` has, by producer id, the first offset and the id of each transaction that is open there.
    """
    with _connected(config, leader) as connection:
        return _browse(connection, name, offset, committed_only, opened)


def has_visible(
    config: Mapping[str, Any], leader: str, name: PartitionName, offset: int, end: int
) -> bool:
    """Whether a read_committed reader finds a record in [offset, end): markers are none."""
    with _connected(config, leader) as connection:
        stable = _fetch(connection, name, offset, _READ_COMMITTED)
    marking = _Marking({}, stable)
    found = [one for one in marking.walk(stable, offset) if one.fate in _VISIBLE]
    return bool(found) or marking.next_offset < end


@contextmanager
def _connected(config: Mapping[str, Any], leader: str) -> Iterator[Connection]:
    try:
        with Connection({**config, "bootstrap.servers": leader}) as connection:
            yield connection
    except (DualWriteError, ConnectionError) as error:
        raise ClusterUnavailable(str(error)) from error


def _browse(
    connection: Connection,
    name: PartitionName,
    offset: int,
    committed_only: bool,
    opened: Mapping[int, tuple[int, str]],
) -> Page:
    stable = _fetch(connection, name, offset, _READ_COMMITTED)
    marking = _Marking(opened, stable)
    found = list(marking.walk(stable, offset))
    if not committed_only and marking.next_offset >= stable.last_stable_offset:
        # Beyond the last stable offset nobody tells what is aborted; only markers further on do.
        unstable = _fetch(connection, name, marking.next_offset, _READ_UNCOMMITTED)
        found += marking.walk(unstable, marking.next_offset)
        found = marking.hindsight(found)
    if committed_only:
        found = [one for one in found if one.fate in _VISIBLE]
    is_cut = len(found) > PAGE_RECORDS
    found = found[:PAGE_RECORDS]
    return Page(
        tuple(found),
        found[-1].offset + 1 if is_cut else max(marking.next_offset, offset),
        stable.last_stable_offset,
        stable.high_watermark,
        max(0, stable.log_start_offset),
    )


def _fetch(
    connection: Connection, name: PartitionName, offset: int, isolation: int
) -> PartitionData:
    wanted = FetchPartition(partition=name[1], fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    response = connection.send(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation_level=isolation,
            topics=[FetchTopic(topic=name[0], partitions=[wanted])],
        ),
        version=_FETCH_VERSION,
    )
    answers: list[PartitionData] = [p for topic in response.responses for p in topic.partitions]
    code = response.error_code or (answers[0].error_code if answers else -1)
    if code:
        raise ClusterUnavailable(f"reading {name[0]}-{name[1]}: {ErrorCode.name_of(code)}")
    return answers[0]


class _Marking:
    """Walks over fetched batches in order and says of each record what became of it."""

    def __init__(self, opened: Mapping[int, tuple[int, str]], stable: PartitionData) -> None:
        self._opened = opened
        self._last_stable = stable.last_stable_offset
        self._to_come = sorted(
            ((one.first_offset, one.producer_id) for one in stable.aborted_transactions or ()),
            reverse=True,
        )
        self._aborting: set[int] = set()
        self._aborted_behind: list[tuple[int, int]] = []
        self.next_offset = -1

    def walk(self, data: PartitionData, offset: int) -> Iterator[ShownRecord]:
        self.next_offset = max(self.next_offset, offset)
        content = _bytes(data.records)
        for position, header in batches(content, cut_tail=True):
            batch = content[position : position + header.length]
            if header.last_offset >= offset:
                yield from self._batch(header, batch, offset)
                self.next_offset = header.last_offset + 1

    def _batch(self, header: BatchHeader, batch: bytes, offset: int) -> Iterator[ShownRecord]:
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._aborting.add(self._to_come.pop()[1])
        producer = (
            f"{header.producer_id}:{header.producer_epoch}" if header.producer_id >= 0 else ""
        )
        try:
            if header.is_control:
                yield self._marker(header, batch, producer)
                return
            fate, transaction = self._fate(header)
            for record in records(batch, DECOMPRESSED_MAX):
                number = header.base_offset + record.offset_delta
                if number >= offset:
                    yield ShownRecord(
                        number,
                        _time(timestamp_of(header, record)),
                        fate,
                        transaction,
                        producer,
                        shown(record.key),
                        shown(record.value),
                        tuple((k[:200], shown(v, 200)) for k, v in record.headers[:SHOWN_HEADERS]),
                    )
        except BatchError as error:
            yield ShownRecord(
                header.base_offset, "", "damaged", producer=producer, value=str(error)
            )

    def _marker(self, header: BatchHeader, batch: bytes, producer: str) -> ShownRecord:
        marker = EndMarker.parse(batch)
        kind = "control"
        if marker is not None:
            kind = "commit marker" if marker.commit else "abort marker"
            if not marker.commit:
                self._aborting.discard(header.producer_id)
                if header.base_offset >= self._last_stable:
                    self._aborted_behind.append((header.producer_id, header.base_offset))
        time = _time(header.max_timestamp)
        return ShownRecord(header.base_offset, time, kind, producer=producer)

    def _fate(self, header: BatchHeader) -> tuple[str, str]:
        first, transaction = self._opened.get(header.producer_id, (None, ""))
        is_behind = header.base_offset >= self._last_stable
        if not header.is_transactional:
            return ("waiting" if is_behind else ""), ""
        if header.producer_id in self._aborting:
            return "aborted", ""
        if first is not None and header.base_offset >= first:
            return "open", transaction
        return ("waiting" if is_behind else "committed"), ""

    def hindsight(self, found: Iterable[ShownRecord]) -> list[ShownRecord]:
        """Records beyond the last stable offset whose abort marker came later on the page."""
        return [
            ShownRecord(
                one.offset, one.time, "aborted", "", one.producer, one.key, one.value, one.headers
            )
            if one.fate == "waiting" and self._is_aborted(one)
            else one
            for one in found
        ]

    def _is_aborted(self, one: ShownRecord) -> bool:
        producer = int(one.producer.partition(":")[0] or -1)
        return any(p == producer and one.offset < at for p, at in self._aborted_behind)


def _bytes(content: Any) -> bytes:
    if content is None:
        return b""
    return b"".join(content) if isinstance(content, list) else bytes(content)


def _time(milliseconds: int) -> str:
    if milliseconds < 0:
        return ""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def shown(content: bytes | None, limit: int = SHOWN_CHARS) -> str:
    """Bytes as text, never as anything else: UTF-8 if they are, else hexadecimal."""
    if content is None:
        return "null"
    cut = content[: limit * 4]
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        # The end of the cut may lie inside a character.
        is_text = len(content) > len(cut) and error.start >= len(cut) - 3
        text = cut[: error.start].decode() if is_text else cut[: limit // 2].hex(" ")
    text = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
    return text if len(text) <= limit and len(cut) == len(content) else f"{text[:limit]}…"
