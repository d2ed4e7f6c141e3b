"""The journal's writer: one group, one write, one fdatasync.

The files are slots that are used again and again; a file's epoch, found in each of its groups, says
which use this is. Slots are never renamed, so using one again changes no metadata: overwriting
written blocks makes the fdatasync as cheap as the disk allows. A new slot is zeroed a little ahead of
the groups, which spreads the cost of growing over its first use.

A group is written only when the one before it is durable. Hence at most the last group of the whole
journal can be torn, and recovery can tell a crash from damage.

One slot that is already written is held back as the reserve. When the disk is full the journal goes on
in slots that a checkpoint has freed, and at last in the reserve. A new start goes on in the slot in which
the last one ended, so any number of starts use up no slot.

An attempt that found no room may have left a whole group behind. The journal never goes on behind such
an attempt: the group is written again at the beginning of another slot, in a later epoch, which is the
one that counts.
"""

from collections import deque
from typing import Final

from crc32c import crc32c

from dualwrite.broker.storage.disk import Buffer, Disk, File, is_out_of_space, sync, sync_names
from dualwrite.broker.storage.entry import COPY_BELOW, EncodedEntry
from dualwrite.broker.storage.errors import DiskFull, StorageFailed
from dualwrite.broker.storage.journal_format import (
    ENTRY_HEADER,
    ENTRY_SIZE,
    HEADER_SIZE,
    JOURNAL_DIR,
    Tip,
    encode_header,
    entry_crc,
    slot_path,
)
from dualwrite.broker.storage.settings import StorageSettings

# Larger groups need no zeroing ahead: growing is a small part of what they cost.
_AHEAD_BELOW: Final = 64 << 10


class Slot:
    """One journal file."""

    __slots__ = ("epoch", "file", "name", "written")

    def __init__(self, name: str, written: int, epoch: int = 0) -> None:
        self.name = name
        self.written = written
        self.epoch = epoch
        self.file: File | None = None


class Journal:
    """The only writer of the journal. `write` may run on another thread, one call at a time."""

    def __init__(
        self,
        disk: Disk,
        settings: StorageSettings,
        secret: bytes,
        tip: Tip,
        slots: list[Slot],
        last_epoch: int,
        current: str = "",
    ) -> None:
        self._disk = disk
        self._settings = settings
        self._seed = crc32c(secret)
        self._used: list[Slot] = [s for s in slots if s.epoch]
        self._free: deque[Slot] = deque(s for s in slots if not s.epoch)
        self._reserve: Slot | None = None
        self._slot = next((s for s in self._used if s.name == current), None)
        self._next_name = 1 + max((int(s.name.split(".")[0]) for s in slots), default=0)
        self._last_epoch = last_epoch
        self.tip = tip
        self.is_full = False
        self.bytes_written = 0

    @property
    def has_reserve(self) -> bool:
        return self._reserve is not None

    def write(self, entries: list[EncodedEntry], steady_ms: int) -> None:
        """Make `entries` durable as one group.

        Raises `DiskFull` if nothing was made durable for want of space: the same entries must be
        given again. Raises `StorageFailed` for every other failure; then nothing is known.
        """
        size = HEADER_SIZE + sum(ENTRY_HEADER.size + e.size for e in entries)
        tried: list[Slot] = []
        slot = self._slot
        if slot is None or not self._fits(slot, size):
            slot = self._next_slot(size)
        while True:
            try:
                self._write_to(slot, entries, size, steady_ms)
                return
            except OSError as error:
                if not is_out_of_space(error):
                    raise StorageFailed(f"journal write to {slot.name} failed: {error}") from error
            self.is_full = True
            tried.append(slot)
            if slot is not self._slot:
                self._free.append(slot)
            self._slot = None
            slot = self._written_slot(size, tried)

    def _fits(self, slot: Slot, size: int) -> bool:
        end = self.tip.offset + size
        limit = slot.written if self.is_full else self._settings.journal_file_bytes
        return end <= max(limit, slot.written)

    def _next_slot(self, size: int) -> Slot:
        if self.is_full:
            return self._written_slot(size, [])
        if self._free:
            return self._free.popleft()
        try:
            return self._new_slot()
        except OSError as error:
            if not is_out_of_space(error):
                raise StorageFailed(f"a new journal file failed: {error}") from error
            self.is_full = True
            return self._written_slot(size, [])

    def _new_slot(self) -> Slot:
        slot = Slot(f"{self._next_name:04d}.wal", 0)
        slot.file = self._disk.create(slot_path(slot.name))
        self._next_name += 1
        # Without this a power loss could take the whole file, fdatasync or not.
        sync_names(self._disk, JOURNAL_DIR)
        return slot

    def _written_slot(self, size: int, tried: list[Slot]) -> Slot:
        """A slot with enough written blocks to need no more from the disk."""
        for _ in range(len(self._free)):
            slot = self._free.popleft()
            if slot.written >= size and slot not in tried:
                return slot
            self._free.append(slot)
        if self._reserve is not None and self._reserve.written >= size:
            slot, self._reserve = self._reserve, None
            return slot
        raise DiskFull("the disk is full and the journal's reserve is used up")

    def _write_to(self, slot: Slot, entries: list[EncodedEntry], size: int, steady_ms: int) -> None:
        is_new = slot is not self._slot
        tip = self.tip
        epoch, offset = tip.epoch, tip.offset
        if is_new:
            # Each attempt has its own epoch: recovery trusts the latest of several.
            self._last_epoch += 1
            epoch, offset = self._last_epoch, 0
        end = offset + size
        reach = max(end, slot.written)
        if end > slot.written and size < _AHEAD_BELOW:
            reach = min(
                end + self._settings.journal_ahead_bytes,
                max(end, self._settings.journal_file_bytes),
            )
        buffers, chain = self._encode(entries, epoch, size, steady_ms, reach)
        if end > slot.written and reach > end:
            buffers.append(bytes(reach - end))
        file = slot.file
        if file is None:
            file = slot.file = self._disk.open(slot_path(slot.name))
        file.writev(buffers, offset)
        sync(file, slot_path(slot.name))
        slot.written = reach
        slot.epoch = epoch
        if is_new:
            self._slot = slot
            self._used.append(slot)
        self.bytes_written += size
        position = tip.position + len(entries)
        self.tip = Tip(slot.name, epoch, end, tip.number + 1, position, chain)

    def _encode(
        self, entries: list[EncodedEntry], epoch: int, size: int, steady_ms: int, reach: int
    ) -> tuple[list[Buffer], int]:
        header, chain = encode_header(
            self._seed, self.tip, epoch, steady_ms, size - HEADER_SIZE, len(entries), reach
        )
        out: list[Buffer] = []
        run: list[Buffer] = [header]
        for entry in entries:
            chain = entry_crc(ENTRY_SIZE.pack(entry.size), entry.parts, chain)
            run.append(ENTRY_HEADER.pack(chain, entry.size))
            for part in entry.parts:
                if len(part) < COPY_BELOW:
                    run.append(part)
                    continue
                out += (b"".join(run), part)
                run = []
        if run:
            out.append(b"".join(run))
        return out, chain

    def recycle(self, tip: Tip) -> None:
        """Free every slot that lies before `tip`, which a durable checkpoint covers."""
        for slot in [s for s in self._used if s.epoch < tip.epoch]:
            self._used.remove(slot)
            slot.epoch = 0
            self._free.append(slot)

    def hold_reserve(self) -> None:
        """Set a written slot aside for a full disk. Raises OSError if there is no room for one."""
        size = self._settings.reserve_bytes
        if self._reserve is not None or not size:
            return
        for slot in list(self._free):
            if slot.written >= size:
                self._free.remove(slot)
                self._reserve = slot
                return
        name = f"{self._next_name:04d}.wal"
        self._disk.preallocate(slot_path(name), size)
        self._next_name += 1
        sync_names(self._disk, JOURNAL_DIR)
        self._reserve = Slot(name, size)

    def close(self) -> None:
        for slot in (*self._used, *self._free, self._reserve):
            if slot is not None and slot.file is not None:
                slot.file.close()
                slot.file = None
