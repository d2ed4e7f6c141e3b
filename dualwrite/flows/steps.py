"""The words between a flow and its driver.

A flow is a generator. It yields a `Step`: what to do on the network and until when to wait. The
driver does it, waits until at least one event came or the time is over, and sends back a `Woken`
with the events and the time. So a flow knows no socket and no clock, and the same flow runs under
blocking sockets, under asyncio and in a test that makes up the answers.

    reply = yield from cluster.call(node, EndTxnRequest(...), version=5)

Times are milliseconds of a monotonic clock. Nodes are numbers; those below zero are bootstrap
addresses, whose real node number is not known yet.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

Address: TypeAlias = tuple[str, int]

FOREVER = float("inf")
AT_ONCE = -FOREVER
"""Do it and go on, without a look at what has happened: that would cost a system call."""


class Connect(NamedTuple):
    """Open a connection to a node; `Opened` or `Closed` tells how it went."""

    node: int
    address: Address


class Disconnect(NamedTuple):
    """Close the connection to a node; its requests are `Lost`."""

    node: int


class Send(NamedTuple):
    """Send a request over an open connection; `Reply` or `Lost` comes back with the token."""

    node: int
    request: Any
    version: int
    token: object
    timeout_ms: float


Action: TypeAlias = Connect | Disconnect | Send


@dataclass(frozen=True, slots=True)
class Offer:
    """What a broker said of itself when the connection was opened."""

    versions: Mapping[int, tuple[int, int]]
    features_epoch: int = -1
    finalized: Mapping[str, int] = field(default_factory=dict)


class Opened(NamedTuple):
    """A connection is ready, with everything that comes before the first request done."""

    node: int
    offer: Offer


class Closed(NamedTuple):
    """A connection is gone, or could not be opened."""

    node: int
    error: Exception


class Reply(NamedTuple):
    """The answer to a request."""

    token: object
    response: Any


class Lost(NamedTuple):
    """No answer will come. The broker may have done what was asked, or not."""

    token: object
    error: Exception


Event: TypeAlias = Opened | Closed | Reply | Lost


class Step(NamedTuple):
    """Do the actions, then wait for events, at most until the given time."""

    actions: list[Action]
    until_ms: float = FOREVER


class Woken(NamedTuple):
    """What has happened since, maybe nothing."""

    now_ms: float
    events: list[Event]


Flow: TypeAlias = Generator[Step, Woken, T]
