"""Who gets which partitions: the server-side assignors of KIP-848.

Both are deterministic and keep what members already have as far as the balance allows.
"""

from collections.abc import Callable, Mapping, Set
from typing import Final

Partitions = Mapping[bytes, int]
"""Number of partitions by topic id."""
Subscriptions = Mapping[str, Set[bytes]]
"""Subscribed topic ids by member id."""
Place = tuple[bytes, int]
"""A topic id and a partition."""
Targets = dict[str, dict[bytes, frozenset[int]]]


def assign_range(subscriptions: Subscriptions, partitions: Partitions, current: Targets) -> Targets:
    """Each topic is cut into ranges, one per member; the same number of partitions is split alike,
    so that members which read several topics get matching partitions.
    """
    found: dict[str, dict[bytes, frozenset[int]]] = {member: {} for member in subscriptions}
    for topic in sorted(partitions):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        each, extra = divmod(partitions[topic], len(members))
        start = 0
        for index, member in enumerate(members):
            count = each + (index < extra)
            if count:
                found[member][topic] = frozenset(range(start, start + count))
            start += count
    return found


def assign_uniform(
    subscriptions: Subscriptions, partitions: Partitions, current: Targets
) -> Targets:
    """Everybody gets about the same number of partitions, moving as few as possible."""
    owned: dict[str, set[Place]] = {member: set() for member in subscriptions}
    free = {(topic, index) for topic, count in partitions.items() for index in range(count)}
    for member in sorted(subscriptions):
        for topic, indexes in current.get(member, {}).items():
            if topic in subscriptions[member]:
                kept = {(topic, index) for index in indexes} & free
                owned[member] |= kept
                free -= kept
    readers = {
        topic: sorted(m for m, topics in subscriptions.items() if topic in topics)
        for topic in partitions
    }
    # Those with few possible readers come first: the others can still go anywhere.
    for place in sorted(free, key=lambda place: (len(readers[place[0]]), place)):
        candidates = readers[place[0]]
        if candidates:
            owned[min(candidates, key=lambda m: (len(owned[m]), m))].add(place)
    _balance(owned, readers)
    return {member: _by_topic(places) for member, places in owned.items()}


def _balance(owned: dict[str, set[Place]], readers: Mapping[bytes, list[str]]) -> None:
    """Move partitions from who has more to who has fewer, until no move makes it more even."""
    while (move := _next_move(owned, readers)) is not None:
        place, giver, taker = move
        owned[giver].remove(place)
        owned[taker].add(place)


def _next_move(
    owned: dict[str, set[Place]], readers: Mapping[bytes, list[str]]
) -> tuple[Place, str, str] | None:
    # One move at a time from whoever has most, or a partition would move twice.
    for giver in sorted(owned, key=lambda m: (-len(owned[m]), m)):
        for topic in sorted({topic for topic, _ in owned[giver]}):
            taker = min(readers[topic], key=lambda m: (len(owned[m]), m))
            if len(owned[taker]) + 1 < len(owned[giver]):
                place = max(place for place in owned[giver] if place[0] == topic)
                return place, giver, taker
    return None


def _by_topic(places: set[Place]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic, index in places:
        topics.setdefault(topic, set()).add(index)
    return {topic: frozenset(indexes) for topic, indexes in topics.items()}


Assignor = Callable[[Subscriptions, Partitions, Targets], Targets]

DEFAULT_ASSIGNOR: Final = "uniform"
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
