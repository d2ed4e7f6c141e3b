"""One request being served, and the port through which its answer leaves."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.clock import Now
from dualwrite.broker.security.rights import ASKED

if TYPE_CHECKING:
    from dualwrite.broker.security.sasl import SaslConnection

RequestT = TypeVar("RequestT")

# A handler returns this where the protocol has no answer (Produce with acks=0).
NO_REPLY: Final[Any] = object()
# And this where only a closed connection tells the client that something is wrong.
HANG_UP: Final[Any] = object()


class Rights(Protocol):
    """Who may do what; the authorizer, or everyone where none is configured."""

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool: ...

    def allows_any_topic(self, principal: str, host: str, operation: Operation) -> bool: ...


class Connection(Protocol):
    """Where a call came from. `deliver` is called once per call, in the order of the calls.

    It must not raise: one dead connection must not cost the others their answers.
    """

    principal: str
    host: str
    listener: str
    sasl: "SaslConnection | None"

    def deliver(self, call: "Call[Any]", response: Any) -> None: ...


@dataclass(slots=True, eq=False)
class Call(Generic[RequestT]):
    """A decoded request with everything that a handler may know about its sender."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    request: RequestT
    connection: Connection
    rights: Rights
    now: Now

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def client_host(self) -> str:
        return self.connection.host

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether the sender has this right; asked before anything is done."""
        if (operation, resource) not in ASKED[self.key]:
            raise LookupError(f"{operation!r} on {resource!r} is not a right of API {self.key}")
        return self.rights.allows(
            self.connection.principal, self.connection.host, operation, resource, name
        )

    def operations(self, resource: ResourceType, name: str, among: tuple[Operation, ...]) -> int:
        """The bit field of what the sender may do (KIP-430)."""
        principal, host, allows = self.principal, self.client_host, self.rights.allows
        return sum(1 << o for o in among if allows(principal, host, o, resource, name))


class Everyone:
    """The rights where no authorizer is configured."""

    def allows(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        return True

    def allows_any_topic(self, principal: str, host: str, operation: Operation) -> bool:
        return True
