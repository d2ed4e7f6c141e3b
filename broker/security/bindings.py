"""Access rules (Kafka's ACL bindings) and the filters that select them: values only.

A binding says: this principal, from this host, is allowed or denied this operation on the resources
that the pattern covers. A pattern is literal (one name, or `*` for all) or prefixed (KIP-290).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.security.errors import InvalidBinding

WILDCARD: Final = "*"
"""As a literal resource name, a host, or a principal's name: everything."""

EVERYONE: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The one name that resources of type CLUSTER have."""


class PatternType(IntEnum):
    """How a resource name in a binding or filter is to be read (KIP-290)."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """What a binding does to a request that it matches."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """One access rule. Build it with `AclBinding.of`, which checks what came from outside."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @classmethod
    def of(
        cls,
        *,
        resource_type: int,
        pattern_type: int,
        name: str,
        principal: str,
        host: str,
        operation: int,
        permission: int,
    ) -> "AclBinding":
        """The binding for numbers and names from a request; raises `InvalidBinding`."""
        kind = _known(ResourceType, resource_type, "resource type")
        if kind is ResourceType.ANY:
            raise InvalidBinding("a binding needs one resource type, not ANY")
        pattern = _known(PatternType, pattern_type, "pattern type")
        if pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise InvalidBinding(f"a binding is LITERAL or PREFIXED, not {pattern.name}")
        what = _known(Operation, operation, "operation")
        if what is Operation.ANY:
            raise InvalidBinding("a binding needs one operation or ALL, not ANY")
        verdict = _known(Permission, permission, "permission")
        if verdict not in (Permission.ALLOW, Permission.DENY):
            raise InvalidBinding(f"a binding is ALLOW or DENY, not {verdict.name}")
        _check_name(kind, pattern, name)
        _check_principal(principal)
        if not host or "\0" in host:
            raise InvalidBinding("a binding needs a host, or * for every host")
        return cls(
            resource_type=kind,
            pattern_type=pattern,
            name=name,
            principal=principal,
            host=host,
            operation=what,
            permission=verdict,
        )

    def encode(self) -> dict[str, object]:
        """The binding as a JSON-able value, by names, so that a journal can be read by people."""
        return {
            "resource_type": self.resource_type.name,
            "pattern_type": self.pattern_type.name,
            "name": self.name,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.name,
            "permission": self.permission.name,
        }

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> "AclBinding":
        """The inverse of `encode`; raises `InvalidBinding` for anything that it did not make."""
        try:
            return cls.of(
                resource_type=ResourceType[str(value["resource_type"])],
                pattern_type=PatternType[str(value["pattern_type"])],
                name=str(value["name"]),
                principal=str(value["principal"]),
                host=str(value["host"]),
                operation=Operation[str(value["operation"])],
                permission=Permission[str(value["permission"])],
            )
        except KeyError as error:
            raise InvalidBinding(f"unknown or missing part of an access rule: {error}") from error

    def speaks_of(self, principal: str, host: str) -> bool:
        """Whether this rule is about that principal on that host."""
        if self.principal not in (principal, EVERYONE):
            return False
        return self.host in (host, WILDCARD)

    def covers(self, name: str) -> bool:
        """Whether the pattern covers a resource of the binding's type with that name."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects bindings for DescribeAcls and DeleteAcls; None and ANY match everything."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str | None
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    @classmethod
    def of(
        cls,
        *,
        resource_type: int,
        pattern_type: int,
        name: str | None,
        principal: str | None,
        host: str | None,
        operation: int,
        permission: int,
    ) -> "AclFilter":
        """The filter for numbers and names from a request; raises `InvalidBinding`."""
        return cls(
            resource_type=_known(ResourceType, resource_type, "resource type"),
            pattern_type=_known(PatternType, pattern_type, "pattern type"),
            name=name,
            principal=principal,
            host=host,
            operation=_known(Operation, operation, "operation"),
            permission=_known(Permission, permission, "permission"),
        )

    def selects(self, binding: AclBinding) -> bool:
        """Whether `binding` is one of those asked for."""
        if self.resource_type not in (ResourceType.ANY, binding.resource_type):
            return False
        if self.principal is not None and self.principal != binding.principal:
            return False
        if self.host is not None and self.host != binding.host:
            return False
        if self.operation not in (Operation.ANY, binding.operation):
            return False
        if self.permission not in (Permission.ANY, binding.permission):
            return False
        return self._selects_pattern(binding)

    def _selects_pattern(self, binding: AclBinding) -> bool:
        if self.pattern_type is PatternType.MATCH:
            # KIP-290: MATCH asks for every pattern that would decide about a resource of this name.
            return self.name is None or binding.covers(self.name)
        if self.pattern_type not in (PatternType.ANY, binding.pattern_type):
            return False
        return self.name is None or self.name == binding.name


_Numbered = TypeVar("_Numbered", bound=IntEnum)


def _known(kind: type[_Numbered], number: int, what: str) -> _Numbered:
    """The member with that number. UNKNOWN is what a newer client's value decodes to: refused."""
    try:
        member = kind(number)
    except ValueError as error:
        raise InvalidBinding(f"unknown {what} {number}") from error
    if member.name == "UNKNOWN":
        raise InvalidBinding(f"unknown {what} {number}")
    return member


def _check_name(kind: ResourceType, pattern: PatternType, name: str) -> None:
    if not name or "\0" in name:
        raise InvalidBinding("a binding needs a resource name, or * for every resource")
    if kind is not ResourceType.CLUSTER:
        return
    # A rule on a cluster of another name would never match; refusing it shows the mistake. The
    # wildcard does match, and tools use it.
    if pattern is not PatternType.LITERAL or name not in (CLUSTER_NAME, WILDCARD):
        raise InvalidBinding(f"the cluster's only name is {CLUSTER_NAME}")


def _check_principal(principal: str) -> None:
    kind, colon, name = principal.partition(":")
    if not kind or not colon or not name or "\0" in principal:
        raise InvalidBinding("a principal is written Type:name, as in User:alice")
