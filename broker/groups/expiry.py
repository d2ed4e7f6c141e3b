"""When an offset is forgotten (KIP-211)."""

from dualwrite.broker.clock import Now
from dualwrite.broker.groups.classic import ClassicGroup, ClassicState
from dualwrite.broker.groups.consumer import ConsumerGroup
from dualwrite.broker.groups.offsets import Offsets, Place
from dualwrite.broker.groups.records import UNKNOWN_MS
from dualwrite.broker.groups.views import subscribed_topics


def expired_places(
    group: ClassicGroup | ConsumerGroup, offsets: Offsets, retention_ms: int, now: Now
) -> list[Place]:
    """Where the group's offsets are too old. What an open transaction touches is never among them."""
    begin_ms, in_use = _begin(group)
    if begin_ms is None:
        return []
    places = []
    for place, committed in sorted(offsets.committed(group.id).items()):
        if place[0] in in_use or offsets.is_pending(group.id, place):
            continue
        expires_ms = committed.expires_steady_ms
        if expires_ms == UNKNOWN_MS:
            expires_ms = max(begin_ms, committed.steady_ms) + retention_ms
        if now.steady_ms >= expires_ms:
            places.append(place)
    return places


def _begin(group: ClassicGroup | ConsumerGroup) -> tuple[int | None, set[str]]:
    """From when on offsets age, None for not at all, and the topics whose offsets don't."""
    if isinstance(group, ClassicGroup) and group.protocol_type:
        if group.in_state(ClassicState.EMPTY):
            return group.state_since_ms, set()
        if not group.in_state(ClassicState.STABLE):
            return None, set()
    in_use = subscribed_topics(group)
    return (None, set()) if in_use is None else (UNKNOWN_MS, in_use)
