"""Bugs in what Fetch hands to a reader who goes on from where it was.

Whoever reads everything from the start when all is over sees none of them.
"""

from collections.abc import Callable
from typing import Any

from dualwrite.broker.handlers import fetch
from dualwrite.broker.producers.aborted import AbortedTxns
from dualwrite.broker.storage.log import Log
from dualwrite.wire.batch_header import BatchHeader, batches
from dualwrite.wire.messages.fetch import AbortedTransaction
from dualwrite.wire.records import EndMarker
from tests.simulation.planted import Mutant, registering

READER_MUTANTS: dict[str, Mutant] = {}
mutant = registering(READER_MUTANTS)

Batch = tuple[BatchHeader, bytes]


def _split(found: Any) -> list[Batch]:
    """What was read, batch by batch."""
    return [
        (header, bytes(part)[position : position + header.length])
        for part in found
        for position, header in batches(part)
    ]


def _changes_reads(
    patch: Any, change: Callable[[Log, int, bool, list[Batch]], list[Batch]]
) -> None:
    """`change` gets the log, the offset, whether it is read_committed, and the batches."""
    read = fetch._Attempt._read

    def changed(self: Any, log: Log, offset: int, max_bytes: int, upper: int) -> Any:
        found = read(self, log, offset, max_bytes, upper)
        if not offset or not found:
            return found
        return [batch for _, batch in change(log, offset, self._reads_committed, _split(found))]

    patch.setattr(fetch._Attempt, "_read", changed)


@mutant(seed=1)
def read_committed_skips_the_batch_behind_a_marker(patch: Any) -> None:
    def skip(log: Log, offset: int, is_committed: bool, found: list[Batch]) -> list[Batch]:
        before = _split(log.read(offset - 1, 1, offset))
        is_behind = any(header.is_control for header, _ in before)
        return found[1:] if is_committed and is_behind and len(found) > 1 else found

    _changes_reads(patch, skip)


@mutant(seed=2)
def readers_pass_over_a_second_batch(patch: Any) -> None:
    def skip(log: Log, offset: int, is_committed: bool, found: list[Batch]) -> list[Batch]:
        return found[:1] + found[2:] if len(found) > 2 and not is_committed else found

    _changes_reads(patch, skip)


@mutant(seed=2)
def a_read_within_a_batch_begins_behind_it(patch: Any) -> None:
    def skip(log: Log, offset: int, is_committed: bool, found: list[Batch]) -> list[Batch]:
        is_within = found[0][0].base_offset < offset
        return found[1:] if is_within and len(found) > 1 else found

    _changes_reads(patch, skip)


@mutant(seed=2)
def a_single_batch_is_not_shown(patch: Any) -> None:
    def hide(log: Log, offset: int, is_committed: bool, found: list[Batch]) -> list[Batch]:
        return found if len(found) > 1 else []

    _changes_reads(patch, hide)


@mutant(seed=1)
def committed_is_named_as_aborted_while_another_is_open(patch: Any) -> None:
    aborted = fetch._aborted

    def named(log: Log, offset: int, upper: int, found: Any) -> list[AbortedTransaction]:
        entries = aborted(log, offset, upper, found)
        if log.last_stable == log.high_watermark:
            return entries
        first: dict[int, int] = {}
        for header, batch in _split(found):
            if not header.is_control:
                first.setdefault(header.producer_id, header.base_offset)
                continue
            marker = EndMarker.parse(batch)
            begin = first.pop(header.producer_id, None)
            if marker is not None and marker.commit and begin is not None:
                entries.append(
                    AbortedTransaction(producer_id=header.producer_id, first_offset=begin)
                )
        return entries

    patch.setattr(fetch, "_aborted", named)


@mutant(seed=14)
def aborted_is_named_to_who_reads_behind_its_marker(patch: Any) -> None:
    """Such a reader finds no marker any more, and leaves out what the producer writes next."""
    between = AbortedTxns.between

    def named(self: AbortedTxns, fetch_offset: int, upper: int) -> Any:
        return between(self, max(0, fetch_offset - 1), upper)

    patch.setattr(AbortedTxns, "between", named)
