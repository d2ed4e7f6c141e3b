"""Recovery's view of the journal: the chain of groups from a checkpoint to the last intact entry.

Where the chain breaks, three things are possible:

1. It goes on in another slot: a file was full, or the disk was, or an earlier recovery stopped at this
   very place. The first group there names the checksum at which the chain stands. The slot in which it
   breaks may hold the same group, whole or torn, from the attempt that found no room.
2. A valid group with later entries exists, but the chain does not lead to it. Since no group is
   written before the last one is durable, a durable group was damaged: `CorruptJournal`. The same if
   a group names a length that the file no longer has, and another group follows it.
3. Otherwise the last group was torn by the crash. Its intact entries are kept, the rest was never
   acknowledged and is dropped.
"""

import logging
from collections.abc import Callable, Iterator

from crc32c import crc32c

from dualwrite.broker.storage.disk import Disk, sync
from dualwrite.broker.storage.errors import CorruptJournal
from dualwrite.broker.storage.journal import Slot
from dualwrite.broker.storage.journal_format import (
    ENTRY_HEADER,
    HEADER_SIZE,
    JOURNAL_DIR,
    MAGIC_BYTES,
    GroupHeader,
    Tip,
    parse_header,
    slot_path,
)

logger = logging.getLogger(__name__)

Apply = Callable[[int, memoryview], None]


class JournalReader:
    """Reads the journal once, in order. `tip` is where it stands, `steady_ms` the last clock seen."""

    def __init__(self, disk: Disk, secret: bytes, tip: Tip) -> None:
        self._disk = disk
        self._seed = crc32c(secret)
        self.tip = tip
        self.steady_ms = 0
        self.slots = _list_slots(disk, self._seed)
        self._current = b""
        self._reach = 0
        self._broken_at: tuple[str, int] | None = None
        # Where the chain goes on at the beginning of a slot: by checksum and position.
        self._beginnings: dict[tuple[int, int], list[FoundSlot]] = {}
        for slot in self.slots.values():
            if slot.first is not None:
                follows = slot.first.previous_crc, slot.first.first_position
                self._beginnings.setdefault(follows, []).append(slot)
        self.replayed: set[str] = set()

    def replay(self, apply: Apply) -> None:
        """Hand every intact entry behind `tip` to `apply(position, payload)`."""
        tip = self.tip
        self._load(tip.slot)
        while True:
            self._read_groups(apply)
            if not self._go_on_elsewhere():
                break
        self._refuse_damage()
        self._make_durable()

    def slots_for_writer(self) -> list[Slot]:
        """All slots; those that a later recovery from the same checkpoint needs keep their epoch."""
        kept = self.replayed | {self.current_slot}
        return [
            Slot(s.name, s.written, s.epoch if s.name in kept else 0) for s in self.slots.values()
        ]

    @property
    def current_slot(self) -> str:
        """The slot in which the writer may go on behind the last group; empty if in none."""
        tip = self.tip
        slot = self.slots.get(tip.slot)
        if slot is None or slot.epoch != tip.epoch or slot.written < tip.offset:
            return ""
        # A group that follows one whose promised length is not there looks like damage.
        return tip.slot if self._reach <= slot.written else ""

    @property
    def last_epoch(self) -> int:
        """No slot holds a valid group of a later epoch."""
        return max(self.tip.epoch, *(s.epoch for s in self.slots.values()), 0)

    def _load(self, slot: str) -> None:
        self._current = b""
        self._reach = 0
        if slot in self.slots:
            file = self._disk.open(slot_path(slot))
            self._current = file.pread(file.size(), 0)
            file.close()

    def _read_groups(self, apply: Apply) -> None:
        while True:
            tip = self.tip
            header = parse_header(self._seed, self._current, tip.offset)
            if header is None or not _follows(header, tip) or header.epoch != tip.epoch:
                self._broken_at = (tip.slot, tip.offset)
                return
            if tip.offset and self._reach > len(self._current):
                raise CorruptJournal(slot_path(tip.slot), len(self._current))
            if self._continuation() is not None:
                self._broken_at = (tip.slot, tip.offset)
                return  # written again elsewhere, since this slot had no room for it
            entries, chain, end = self._intact_entries(header)
            # A torn one promises nothing: a later life may have gone on behind its last entry.
            self._reach = header.reach if len(entries) == header.entries else 0
            self.replayed.add(tip.slot)
            for number, payload in enumerate(entries, header.first_position):
                apply(number, payload)
            self.steady_ms = max(self.steady_ms, header.steady_ms)
            position = tip.position + len(entries)
            self.tip = Tip(tip.slot, tip.epoch, end, header.number, position, chain)

    def _intact_entries(self, header: GroupHeader) -> tuple[list[memoryview], int, int]:
        data = memoryview(self._current)
        offset = self.tip.offset + HEADER_SIZE
        limit = min(len(data), offset + header.body_size)
        chain = header.crc
        entries = []
        for _ in range(header.entries):
            if offset + ENTRY_HEADER.size > limit:
                break
            crc, size = ENTRY_HEADER.unpack_from(data, offset)
            start = offset + ENTRY_HEADER.size
            if start + size > limit:
                break
            if crc32c(data[start : start + size], crc32c(data[offset + 4 : start], chain)) != crc:
                break
            entries.append(data[start : start + size])
            chain = crc
            offset = start + size
        return entries, chain, offset

    def _continuation(self) -> tuple[str, GroupHeader] | None:
        """The slot whose first group follows the tip; of several attempts the last one."""
        best: tuple[str, GroupHeader] | None = None
        for slot in self._beginnings.get((self.tip.chain, self.tip.position + 1), ()):
            header = slot.first
            if header is None or header.epoch <= self.tip.epoch or not _follows(header, self.tip):
                continue
            if best is None or header.epoch > best[1].epoch:
                best = (slot.name, header)
        return best

    def _go_on_elsewhere(self) -> bool:
        found = self._continuation()
        if found is None:
            return False
        name, header = found
        tip = self.tip
        self.tip = Tip(name, header.epoch, 0, tip.number, tip.position, tip.chain)
        self._load(name)
        return True

    def _refuse_damage(self) -> None:
        """Raise if a valid group lies behind the end of the chain."""
        found = [
            (header.first_position, slot.name)
            for slot in self.slots.values()
            for header in self._groups_behind_the_end(slot)
        ]
        if found:
            raise CorruptJournal(*self._damage(self.slots[min(found)[1]]))

    def _groups_behind_the_end(self, slot: "FoundSlot") -> Iterator[GroupHeader]:
        file = self._disk.open(slot_path(slot.name))
        data = file.pread(file.size(), 0)
        file.close()
        at = data.find(MAGIC_BYTES)
        while at >= 0:
            header = parse_header(self._seed, data, at)
            if (
                header is not None
                and header.epoch >= self.tip.epoch
                and header.first_position > self.tip.position + 1
            ):
                yield header
            at = data.find(MAGIC_BYTES, at + 1)

    def _damage(self, later: "FoundSlot") -> tuple[str, int]:
        """Which file is damaged, and where; `later` holds the first group behind what is missing.

        What is missing was either where the chain breaks, or at the beginning of another slot.
        """
        assert self._broken_at is not None
        name, offset = self._broken_at
        if later.is_unreadable and later.name != name:
            return slot_path(later.name), 0
        if not self._current.startswith(MAGIC_BYTES, offset):
            for slot in self.slots.values():
                if slot.is_unreadable and slot.name != name:
                    return slot_path(slot.name), 0
        return slot_path(name), offset

    def _make_durable(self) -> None:
        # After a mere kill the last group may have been read from the page cache. What is built upon
        # it must not become durable before it.
        for name in sorted(self.replayed):
            file = self._disk.open(slot_path(name))
            sync(file, slot_path(name))
            file.close()
        if self.replayed:
            logger.info("replayed journal position=%d slots=%d", self.tip.position, len(self.slots))


class FoundSlot:
    """A journal file as recovery finds it."""

    __slots__ = ("epoch", "first", "is_unreadable", "name", "written")

    def __init__(
        self, name: str, written: int, first: GroupHeader | None, is_unreadable: bool
    ) -> None:
        self.name = name
        self.written = written
        self.first = first
        self.is_unreadable = is_unreadable  # it begins with something, but with no group
        self.epoch = first.epoch if first is not None else 0


def _list_slots(disk: Disk, seed: int) -> dict[str, FoundSlot]:
    slots = {}
    for name in disk.listdir(JOURNAL_DIR):
        file = disk.open(slot_path(name))
        begin = file.pread(HEADER_SIZE, 0)
        first = parse_header(seed, begin, 0)
        is_unreadable = first is None and (len(begin) < HEADER_SIZE or any(begin))
        slots[name] = FoundSlot(name, file.size(), first, is_unreadable)
        file.close()
    return slots


def _follows(header: GroupHeader, tip: Tip) -> bool:
    return (
        header.previous_crc == tip.chain
        and header.first_position == tip.position + 1
        and header.number > tip.number
    )
