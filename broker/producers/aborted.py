"""The aborted transactions of one partition, and their form on disk.

A read_committed consumer gets every record below the last stable offset, aborted ones included, with
a list of the aborted transactions, and leaves those records out itself (KIP-98).

On disk an entry has 34 bytes, as in Kafka's `.txnindex` files: int16 version, then producer id, first
offset, last offset and last stable offset as int64.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

_ENTRY = struct.Struct(">hqqqq")
_VERSION: Final = 0
_last_offset = attrgetter("last_offset")


class AbortedTxn(NamedTuple):
    """One aborted transaction: its first record, its marker, and what was stable at the marker.

    `last_stable` is the first offset of the oldest transaction that another producer still had open,
    or else the offset behind the marker. No transaction that ends later begins below it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable: int


class AbortedTxns:
    """All aborted transactions whose markers are in the log, in the order of their markers."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTxn] = ()) -> None:
        self._entries = sorted(entries, key=_last_offset)

    def __iter__(self) -> Iterator[AbortedTxn]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: AbortedTxn) -> None:
        assert not self._entries or entry.last_offset > self._entries[-1].last_offset
        self._entries.append(entry)

    def between(self, fetch_offset: int, upper: int) -> list[AbortedTxn]:
        """Those that a reader of [fetch_offset, upper) must know."""
        found: list[AbortedTxn] = []
        entries = self._entries
        for index in range(bisect_left(entries, fetch_offset, key=_last_offset), len(entries)):
            entry = entries[index]
            if entry.first_offset < upper:
                found.append(entry)
            # Whatever ended after this marker began at or above its last stable offset.
            if entry.last_stable >= upper:
                break
        return found

    def within(self, start: int, end: int) -> list[AbortedTxn]:
        """Those whose markers lie in [start, end)."""
        entries = self._entries
        first = bisect_left(entries, start, key=_last_offset)
        return entries[first : bisect_left(entries, end, key=_last_offset)]

    def remove(self, markers: Iterable[int]) -> None:
        """Forget those whose markers, given by offset, the log cleaner has removed.

        An entry must go with its marker: a consumer that finds no marker would go on leaving out
        the producer's records.
        """
        gone = set(markers)
        self._entries = [entry for entry in self._entries if entry.last_offset not in gone]

    def put_before(self, entries: Iterable[AbortedTxn]) -> None:
        """Add those of earlier segments."""
        self._entries[:0] = entries

    def drop_before(self, log_start: int) -> None:
        """Forget those whose markers lie below the log's start: all their records are gone."""
        del self._entries[: bisect_left(self._entries, log_start, key=_last_offset)]


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    """The entries as a transaction index holds them."""
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes | memoryview) -> list[AbortedTxn]:
    """Read a transaction index; a ValueError if it is cut, of another version or not in order."""
    if len(data) % _ENTRY.size:
        raise ValueError(f"transaction index of {len(data)} bytes ends inside an entry")
    entries: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        if version != _VERSION:
            raise ValueError(f"transaction index entry has version {version}")
        entry = AbortedTxn(*fields)
        if entry.first_offset > entry.last_offset:
            raise ValueError(f"transaction index entry ends before it begins: {entry}")
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise ValueError(f"transaction index goes back at offset {entry.last_offset}")
        entries.append(entry)
    return entries
