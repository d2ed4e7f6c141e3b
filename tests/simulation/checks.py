"""What must hold when everything is healed and every client has finished."""

from bisect import bisect_left
from collections import Counter
from typing import Any

from dualwrite.broker.call import Call, Everyone
from dualwrite.broker.handlers import served_apis
from dualwrite.broker.transactions.state import EXPIRABLE_STATES
from dualwrite.wire.api_keys import ApiKey
from tests.simulation.database import Database
from tests.simulation.ledger import Ledger
from tests.simulation.observer import Observer, Seen, committed, contents, fetch_request
from tests.simulation.requests import offset_request
from tests.simulation.world import PARTITIONS, Line, Violation, World

Where = tuple[str, int]


def read_all(world: World, isolation: int) -> Any:
    """The whole of every partition, straight from the handler."""
    assert world.node is not None
    request = fetch_request({}, isolation, 0)
    call: Call[Any] = Call(
        ApiKey.FETCH, 12, 0, "check", request, Line(world, None), Everyone(), world.clock
    )
    return served_apis()[ApiKey.FETCH].serve(world.node, call)


def check_end(world: World, ledger: Ledger, database: Database, observer: Observer) -> None:
    """Raise `Violation` for anything that should not be as it is."""
    assert world.node is not None
    world.node.flush(world.clock)
    check_nothing_open(world)
    reply = read_all(world, 1)
    visible: dict[Where, dict[int, bytes]] = {}
    for topic in reply.responses:
        for part in topic.partitions:
            where = (topic.topic, part.partition_index)
            if part.last_stable_offset != part.high_watermark:
                raise Violation(f"{where} hangs at {part.last_stable_offset}/{part.high_watermark}")
            stretch = contents(part.records) if part.records else []
            if [offset for offset, _ in stretch] != [*range(part.high_watermark)]:
                raise Violation(f"{where} has holes below {part.high_watermark}")
            visible[where] = dict(committed(stretch, part.aborted_transactions))
    observer.take(read_all(world, 0), 0, {})
    observer.take(reply, 1, {})
    check_observed(observer, visible)
    check_reads(observer)
    check_transactions(ledger, database, visible)
    check_offsets(world, ledger, visible)
    if not world.weather.offline:
        check_atomic(observer)


def check_nothing_open(world: World) -> None:
    assert world.node is not None
    coordinator = world.node.transactions
    listing = coordinator.list_transactions(now=world.clock)
    for transaction in listing.transactions:
        if transaction.state not in EXPIRABLE_STATES:
            raise Violation(
                f"{transaction.transactional_id} is still {transaction.state.wire_name}"
            )
    if coordinator.open_count():
        raise Violation("the coordinator counts open transactions")


def check_observed(observer: Observer, visible: dict[Where, dict[int, bytes]]) -> None:
    """What was committed during the run is there now: no aborted read, no loss."""
    for where in PARTITIONS:
        for offset, value in observer.committed[where].items():
            if visible[where].get(offset) != value:
                raise Violation(f"{where} showed {value!r} at {offset}, which is not committed")


def check_reads(observer: Observer) -> None:
    """Every read has shown all that is in the stretch it went over, and nothing else.

    What is in there is not taken from an answer's list of aborted transactions: the records and
    markers that all reads together have seen say it. Nothing of these topics is ever deleted.
    """
    truth = {where: _by_isolation(observer.log[where]) for where in PARTITIONS}
    for read in observer.reads:
        offsets = truth[read.where][read.isolation]
        first, last = (bisect_left(offsets, bound) for bound in (read.position, read.end))
        there = offsets[first:last]
        if there != read.shown:
            raise Violation(
                f"{read.where} from {read.position} to {read.end} at isolation {read.isolation}"
                f" showed {read.shown}, there is {there}"
            )


def _by_isolation(log: dict[int, Seen]) -> tuple[list[int], list[int]]:
    """The offsets of all records, and of those whose next marker commits them."""
    everything: list[int] = []
    decided: list[int] = []
    open_ones: dict[int, list[int]] = {}
    for offset, seen in sorted(log.items()):
        if seen.commit is None:
            everything.append(offset)
            open_ones.setdefault(seen.producer_id, []).append(offset)
            continue
        ended = open_ones.pop(seen.producer_id, [])
        if seen.commit:
            decided += ended
    return everything, sorted(decided)


def check_transactions(
    ledger: Ledger, database: Database, visible: dict[Where, dict[int, bytes]]
) -> None:
    counts = Counter(
        (*where, value) for where, values in visible.items() for value in values.values()
    )
    for intent in ledger.intents.values():
        there = [counts[record] for record in intent.records]
        if any(count > 1 for count in there):
            raise Violation(f"{intent.name} is there twice: {there}")
        if any(there) and not all(there):
            raise Violation(f"{intent.name} is torn: {there}")
        is_there = any(there)
        if intent.kind == "dual":
            if is_there != (intent.name in database.rows):
                row = "a" if intent.name in database.rows else "no"
                raise Violation(f"{intent.name} has {row} row and records {there}")
        elif intent.outcome == "committed" and not is_there:
            raise Violation(f"{intent.name} was committed and is lost")
        elif intent.outcome == "aborted" and is_there:
            raise Violation(f"{intent.name} was aborted and is visible")
    check_order(ledger, visible)


def check_offsets(world: World, ledger: Ledger, visible: dict[Where, dict[int, bytes]]) -> None:
    """Each input is in exactly one visible transaction, up to the group's offset."""
    there = {value.decode().partition("/")[0] for v in visible.values() for value in v.values()}
    sources = sorted(
        intent.source
        for intent in ledger.intents.values()
        if intent.source is not None and intent.name in there
    )
    position = 0
    for start, stop in sources:
        if start != position:
            raise Violation(f"the input is copied from {start}, expected {position}: {sources}")
        position = stop
    found = max(0, committed_offset(world))
    if found != position:
        raise Violation(f"the group's offset is {found}, its results go to {position}")


def committed_offset(world: World) -> int:
    answers: list[Any] = []
    call: Call[Any] = Call(
        ApiKey.OFFSET_FETCH, 8, 0, "check", offset_request(), Line(world, answers.append),
        Everyone(), world.clock,
    )  # fmt: skip
    assert world.node is not None
    world.node.handle(call)
    world.node.flush(world.clock)
    part = answers[0].groups[0].topics[0].partitions[0]
    if part.error_code:
        raise Violation(f"OffsetFetch is told {part.error_code}")
    offset: int = part.committed_offset
    return offset


def check_order(ledger: Ledger, visible: dict[Where, dict[int, bytes]]) -> None:
    """Within a partition an id's transactions, and the records of each, keep their order.

    An id's transactions are begun one behind the other: whoever begins one has the newest pair, or
    is fenced and writes nothing that becomes visible.
    """
    for where, values in visible.items():
        last: dict[str, tuple[int, int]] = {}
        for _, value in sorted(values.items()):
            intent = ledger.of_value(value)
            place = (intent.number, int(value.decode().partition("/")[2]))
            before = last.get(intent.transactional_id)
            if before is not None and place <= before:
                raise Violation(f"{where} has {value!r} behind {before}: out of order")
            last[intent.transactional_id] = place


def check_atomic(observer: Observer) -> None:
    """Whoever sees one marker of a transaction sees all of them: they are one journal entry."""
    ends: dict[tuple[int, int], dict[Where, int]] = {}
    ambiguous: set[tuple[int, int]] = set()
    for where in PARTITIONS:
        for offset, seen in observer.log[where].items():
            if seen.commit is None:
                continue
            key = (seen.producer_id, seen.producer_epoch)
            if where in ends.setdefault(key, {}):
                ambiguous.add(key)  # version 1 ends many transactions with one pair
            ends[key][where] = offset
    for key, places in ends.items():
        if key in ambiguous or len(places) < 2:
            continue
        for look in observer.looks:
            shown = {look.high_watermarks[where] > offset for where, offset in places.items()}
            if len(shown) == 2:
                raise Violation(f"the end of {key} is visible in some partitions only")
