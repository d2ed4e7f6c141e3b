"""One request being served, and the port through which its answer leaves."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.clock import Now

RequestT = TypeVar("RequestT")

# A handler returns this where the protocol has no answer (Produce with acks=0).
NO_REPLY: Any = object()


class Rights(Protocol):
    """Who may do what; the authorizer, or everyone where none is configured."""

    def allows(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool: ...

    def allows_any_topic(self, principal: str, host: str, operation: Operation) -> bool: ...


class Connection(Protocol):
    """Where a call came from. `deliver` is called once per call, in the order of the calls."""

    principal: str
    host: str
    listener: str

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
        return self.rights.allows(
            self.connection.principal, self.connection.host, operation, resource, name
        )


class Everyone:
    """The rights where no authorizer is configured."""

    def allows(
        self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        return True

    def allows_any_topic(self, principal: str, host: str, operation: Operation) -> bool:
        return True
