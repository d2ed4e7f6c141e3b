"""How a member gets from what it has to what it is to have: give back first, then take (KIP-848)."""

from collections.abc import Callable, Set

from dualwrite.broker.groups.consumer import ConsumerMember, Held, MemberState, Target
from dualwrite.wire.messages.consumer_group_heartbeat import TopicPartitions

Owned = list[TopicPartitions] | None
"""What a member says it has; None if nothing changed since its last heartbeat."""


def reconcile(
    member: ConsumerMember,
    target: Target,
    target_epoch: int,
    owned: Owned,
    subscribed: Set[bytes],
    is_unreleased: Callable[[bytes, int], bool],
    subscription_changed: bool,
) -> ConsumerMember | None:
    """The member after this heartbeat; None if it must abandon everything and rejoin."""
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _without_unsubscribed(member, subscribed, owned) if subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _without_unsubscribed(member, subscribed, owned) if subscription_changed else member
    epoch = member.epoch
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            return None
        epoch = target_epoch
    return _next(member, target, target_epoch, epoch, owned, subscribed, is_unreleased)


def _owns_any(owned: Owned, revoking: Held) -> bool:
    if owned is None:
        return True
    return any(
        partition in revoking.get(topic.topic_id, ())
        for topic in owned
        for partition in topic.partitions
    )


def _without_unsubscribed(
    member: ConsumerMember, subscribed: Set[bytes], owned: Owned
) -> ConsumerMember:
    """A member must give back topics that it no longer subscribes to, before there is a new target."""
    held = {topic: p for topic, p in member.held.items() if topic in subscribed}
    if len(held) == len(member.held):
        return member
    revoking = {topic: dict(partitions) for topic, partitions in member.revoking.items()}
    for topic, partitions in member.held.items():
        if topic not in subscribed:
            revoking.setdefault(topic, {}).update(partitions)
    if _owns_any(owned, revoking):
        return member.moved_to(
            member.epoch, state=MemberState.UNREVOKED_PARTITIONS, held=held, revoking=revoking
        )
    return member.moved_to(member.epoch, held=held)


def _next(
    member: ConsumerMember,
    target: Target,
    target_epoch: int,
    epoch: int,
    owned: Owned,
    subscribed: Set[bytes],
    is_unreleased: Callable[[bytes, int], bool],
) -> ConsumerMember:
    keep: Held = {}
    revoke: Held = {}
    take: Held = {}
    must_wait = False
    for topic in target.keys() | member.held.keys():
        wanted = target.get(topic, frozenset()) if topic in subscribed else frozenset()
        held = member.held.get(topic, {})
        for partition, since in held.items():
            (keep if partition in wanted else revoke).setdefault(topic, {})[partition] = since
        for partition in wanted - held.keys():
            if is_unreleased(topic, partition):
                must_wait = True
            else:
                take.setdefault(topic, {})[partition] = target_epoch
    if revoke and _owns_any(owned, revoke):
        return member.moved_to(
            epoch, state=MemberState.UNREVOKED_PARTITIONS, held=keep, revoking=revoke
        )
    for topic, partitions in take.items():
        keep.setdefault(topic, {}).update(partitions)
    state = MemberState.UNRELEASED_PARTITIONS if must_wait else MemberState.STABLE
    return member.moved_to(target_epoch, state=state, held=keep, revoking={})
