"""`python -m dualwrite.broker.storage.repair DATA_DIR`: look for damage, and give up what is damaged.

Without an option it only reads: every stretch of every segment is compared with its checksum. It works
on a stopped broker's directory and holds its lock meanwhile.

`--cut-journal` gives up the journal from its first damaged byte on; what was acknowledged behind it is
lost. `--drop-damaged` takes damaged stretches out of the segments; their offsets are then missing, as
after compaction, and the log comes back online.
"""

import argparse
import sys
from collections.abc import Sequence

from dualwrite.broker.clock import Now
from dualwrite.broker.storage import checkpoint as checkpoints
from dualwrite.broker.storage.disk import Disk, RealDisk, sync
from dualwrite.broker.storage.entry import Roll, Swap
from dualwrite.broker.storage.errors import CorruptJournal, StorageError
from dualwrite.broker.storage.journal_format import slot_path
from dualwrite.broker.storage.journal_reader import JournalReader
from dualwrite.broker.storage.log import Log
from dualwrite.broker.storage.segment import Damage, Segment
from dualwrite.broker.storage.settings import StorageSettings
from dualwrite.broker.storage.storage import Storage


def cut_journal(disk: Disk) -> str | None:
    """Make the journal end at its first damaged byte; says where, None if nothing is damaged."""
    checkpoint = checkpoints.load(disk)
    if checkpoint is None:
        return None
    reader = JournalReader(disk, checkpoint.secret, checkpoint.tip)
    try:
        reader.replay(lambda position, payload: None)
        return None
    except CorruptJournal as error:
        damage = error
    tip = reader.tip
    for name in reader.slots:
        if name in reader.replayed and name != tip.slot:
            continue
        begin = tip.offset if name == tip.slot else 0
        file = disk.open(slot_path(name))
        try:
            file.pwrite(bytes(max(0, file.size() - begin)), begin)
            sync(file, slot_path(name))
        finally:
            file.close()
    return f"{damage.file} from byte {damage.offset} on"


def find_damage(storage: Storage) -> list[tuple[Log, Segment, list[Damage]]]:
    """Every damaged stretch of every segment."""
    found = []
    for log in storage.logs.values():
        storage.write_behind(log)
        for segment in log.segments:
            damages = segment.damages(storage.files)
            if damages:
                found.append((log, segment, damages))
    return found


def drop_damaged(storage: Storage, log: Log, segment: Segment, now: Now) -> None:
    """Put a segment without its damaged stretches in the place of one that has them."""
    if segment is log.active:
        storage.add([Roll(log.key, log.end)], now)
    aborted = log.producers.aborted.within(segment.base_offset, segment.end_offset)
    target = segment.without_damage(storage.files, aborted)
    storage.files.sync_names()
    removed = ((segment.base_offset, segment.generation),)
    storage.add([Swap(log.key, log.cleaned_to, removed, (target.info(),))], now)
    storage.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: nothing is damaged (any more), 1: something is, 2: usage."""
    parser = argparse.ArgumentParser(
        prog="python -m dualwrite.broker.storage.repair",
        description="Look for damage in a stopped broker's data directory.",
    )
    parser.add_argument("data_dir", metavar="DATA_DIR")
    parser.add_argument(
        "--cut-journal", action="store_true", help="give up a damaged journal's rest"
    )
    parser.add_argument("--drop-damaged", action="store_true", help="give up damaged stretches")
    options = parser.parse_args(arguments)
    try:
        return _run(RealDisk(options.data_dir), options)
    except StorageError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _run(disk: Disk, options: argparse.Namespace) -> int:
    say = sys.stdout.write
    try:
        if options.cut_journal:
            cut = cut_journal(disk)
            say(f"journal cut: {cut}\n" if cut else "the journal is not damaged\n")
        metas: list[bytes] = []
        storage = Storage.open(disk, StorageSettings(), metas.append)
        found = find_damage(storage)
        for log, segment, damages in found:
            for damage in damages:
                say(
                    f"{segment.path} is damaged at byte {damage.position} ({damage.size} bytes, "
                    f"offsets {damage.first_offset} to {damage.end_offset - 1})\n"
                )
            if options.drop_damaged:
                drop_damaged(storage, log, segment, Now(storage.wall_ms, storage.steady_ms))
                say(f"{segment.path}: damaged bytes dropped\n")
        if not found:
            say(f"{len(storage.logs)} logs, nothing damaged\n")
        storage.files.close()
        return 1 if found and not options.drop_damaged else 0
    finally:
        disk.close()


if __name__ == "__main__":
    sys.exit(main())
