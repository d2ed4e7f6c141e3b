"""Decides what a principal may do, from the access rules in force.

Deny beats allow, whatever the order and the pattern. Without a rule that allows it, a request is
refused. A super user is never refused. An authorizer that is off (no listener authenticates
anybody) allows everything, and the ACL requests say so with SECURITY_DISABLED instead of storing
rules without effect.

`replay_meta` is the only mutator of the rules: loading a journal and running are the same code.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.security.bindings import (
    WILDCARD,
    AclBinding,
    AclFilter,
    PatternType,
    Permission,
)
from dualwrite.broker.security.errors import InvalidBinding, SecurityConfigError

ADD: Final = "acl_add"
REMOVE: Final = "acl_remove"
META_KINDS: Final = frozenset({ADD, REMOVE})
"""The kinds of meta record that belong to the authorizer."""

CACHED_VERDICTS_MAX: Final = 8_192

_IMPLIES_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)

_Verdict = tuple[str, str, Operation, ResourceType, str]


def _granting(operation: Operation) -> frozenset[Operation]:
    """The operations of an allow rule that grant `operation`: itself, ALL, and what implies it."""
    granting = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        granting.update(_IMPLIES_DESCRIBE)
    if operation is Operation.DESCRIBE_CONFIGS:
        granting.add(Operation.ALTER_CONFIGS)
    return frozenset(granting)


# A deny rule is about its own operation only: denying DESCRIBE does not deny READ, nor the reverse.
GRANTED_BY: Final = {operation: _granting(operation) for operation in Operation}
DENIED_BY: Final = {operation: frozenset({operation, Operation.ALL}) for operation in Operation}


def parse_super_users(setting: str) -> frozenset[str]:
    """The principals of Kafka's `super.users`: separated by semicolons, since a DN holds commas."""
    principals = [part.strip() for part in setting.split(";") if part.strip()]
    for principal in principals:
        kind, colon, name = principal.partition(":")
        if not colon or not kind or not name or name == WILDCARD:
            raise SecurityConfigError(f"super.users: {principal!r} is not written as User:name")
    return frozenset(principals)


class Authorizer:
    """The access rules in force, indexed by resource.

    Rules with a literal name are found by that name. Rules with a prefix are found by cutting the
    name to every length that some prefix has: the cost is the number of lengths, not of rules.
    """

    def __init__(
        self,
        *,
        enabled: bool,
        super_users: frozenset[str] = frozenset(),
        allow_everyone_if_no_acl_found: bool = False,
    ) -> None:
        self.enabled = enabled
        self.super_users = super_users
        self._allow_if_no_acl_found = allow_everyone_if_no_acl_found
        self._bindings: set[AclBinding] = set()
        self._literal: dict[tuple[ResourceType, str], set[AclBinding]] = {}
        self._prefixed: dict[tuple[ResourceType, str], set[AclBinding]] = {}
        self._prefix_lengths: dict[ResourceType, Counter[int]] = {}
        self._verdicts: dict[_Verdict, bool] = {}

    def __len__(self) -> int:
        return len(self._bindings)

    def __contains__(self, binding: AclBinding) -> bool:
        return binding in self._bindings

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether `principal`, connected from `host`, may do `operation` to that resource."""
        if not self.enabled or principal in self.super_users:
            return True
        question = (principal, host, operation, resource_type, name)
        verdict = self._verdicts.get(question)
        if verdict is None:
            verdict = self._decide(principal, host, operation, resource_type, name)
            if len(self._verdicts) >= CACHED_VERDICTS_MAX:
                # Names come from clients: forgetting all bounds the memory that they can take.
                self._verdicts.clear()
            self._verdicts[question] = verdict
        return verdict

    def _decide(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        found = False
        allowed = False
        for binding in self._about(resource_type, name):
            found = True
            if not binding.speaks_of(principal, host):
                continue
            if binding.permission is Permission.DENY:
                if binding.operation in DENIED_BY[operation]:
                    return False
            elif binding.operation in GRANTED_BY[operation]:
                allowed = True
        return allowed or (not found and self._allow_if_no_acl_found)

    def _about(self, resource_type: ResourceType, name: str) -> Iterator[AclBinding]:
        """Every rule whose pattern covers the resource."""
        yield from self._literal.get((resource_type, WILDCARD), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, name), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                yield from self._prefixed.get((resource_type, name[:length]), ())

    def allows_any(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether there is some name of that type that `principal` may do `operation` to.

        As Kafka decides it: an allow rule counts unless one deny rule covers all that it allows.
        """
        if not self.enabled or principal in self.super_users:
            return True
        mine = [
            binding
            for binding in self._bindings
            if binding.resource_type is resource_type and binding.speaks_of(principal, host)
        ]
        denied = [b for b in mine if _denies(b, operation)]
        if any(_is_everything(b) for b in denied):
            return False
        if self._allow_if_no_acl_found:
            # Some name has no rule at all, since no rule for every name denies it.
            return True
        return any(
            not any(_covers_all_of(deny, allow) for deny in denied)
            for allow in mine
            if allow.permission is Permission.ALLOW and allow.operation in GRANTED_BY[operation]
        )

    def allows_any_topic(self, principal: str, host: str, operation: Operation) -> bool:
        """Whether there is some topic that `principal` may do `operation` to (InitProducerId)."""
        return self.allows_any(principal, host, operation, ResourceType.TOPIC)

    def select(self, which: AclFilter) -> list[AclBinding]:
        """The rules that `which` selects, in a fixed order."""
        return sorted(binding for binding in self._bindings if which.selects(binding))

    def replay_meta(self, record: Mapping[str, object]) -> None:
        """Apply one meta record of `META_KINDS`. A repeated record changes nothing."""
        bindings = _decoded(record)
        match record["kind"]:
            case "acl_add":
                for binding in bindings:
                    self._add(binding)
            case "acl_remove":
                for binding in bindings:
                    self._remove(binding)
            case kind:
                raise InvalidBinding(f"not a record of the authorizer: {kind!r}")
        self._verdicts.clear()

    def meta_records(self) -> list[dict[str, object]]:
        """Records that give an empty authorizer the rules of this one (for a checkpoint)."""
        return [added(sorted(self._bindings))] if self._bindings else []

    def _add(self, binding: AclBinding) -> None:
        self._bindings.add(binding)
        index = self._index_of(binding)
        key = (binding.resource_type, binding.name)
        if key not in index:
            index[key] = set()
            self._count_prefix(binding, 1)
        index[key].add(binding)

    def _remove(self, binding: AclBinding) -> None:
        self._bindings.discard(binding)
        index = self._index_of(binding)
        key = (binding.resource_type, binding.name)
        if key not in index:
            return
        # CVE-2024-27309: the other rules on the same resource stay.
        index[key].discard(binding)
        if not index[key]:
            del index[key]
            self._count_prefix(binding, -1)

    def _index_of(self, binding: AclBinding) -> dict[tuple[ResourceType, str], set[AclBinding]]:
        return self._prefixed if binding.pattern_type is PatternType.PREFIXED else self._literal

    def _count_prefix(self, binding: AclBinding, change: int) -> None:
        if binding.pattern_type is not PatternType.PREFIXED:
            return
        lengths = self._prefix_lengths.setdefault(binding.resource_type, Counter())
        lengths[len(binding.name)] += change
        if not lengths[len(binding.name)]:
            del lengths[len(binding.name)]


def added(bindings: Iterable[AclBinding]) -> dict[str, object]:
    """The meta record that puts `bindings` in force."""
    return {"kind": ADD, "bindings": [binding.encode() for binding in bindings]}


def removed(bindings: Iterable[AclBinding]) -> dict[str, object]:
    """The meta record that takes `bindings` out of force."""
    return {"kind": REMOVE, "bindings": [binding.encode() for binding in bindings]}


def _decoded(record: Mapping[str, object]) -> list[AclBinding]:
    values = record["bindings"]
    if not isinstance(values, list):
        raise InvalidBinding("the bindings of a meta record are a list")
    return [AclBinding.decode(value) for value in values]


def _denies(binding: AclBinding, operation: Operation) -> bool:
    return binding.permission is Permission.DENY and binding.operation in DENIED_BY[operation]


def _is_everything(binding: AclBinding) -> bool:
    return binding.pattern_type is PatternType.LITERAL and binding.name == WILDCARD


def _covers_all_of(deny: AclBinding, allow: AclBinding) -> bool:
    """Whether every name that `allow` covers is covered by `deny`."""
    if _is_everything(allow):
        return _is_everything(deny)
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.name.startswith(deny.name)
    return allow.pattern_type is PatternType.LITERAL and allow.name == deny.name
