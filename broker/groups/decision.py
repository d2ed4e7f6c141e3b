"""What a request to the group coordinator leads to: records to append and replies, also to others."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

# What a request is answered by; the coordinator only keeps it and hands it back.
Token = Any


class Client(NamedTuple):
    """Who asks, as it is shown to operators."""

    id: str
    host: str


NOBODY: Final = Client("", "")


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record of `__consumer_offsets` in Kafka's formats; None as the value deletes the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """Records of one group that become durable together, and the replies that wait for them.

    `replies` may answer several requests: the last member that joins answers all parked joins.
    `producer` is the pair of a transactional batch (KIP-447).
    """

    group: str
    records: tuple[GroupRecord, ...] = ()
    replies: tuple[tuple[Token, Any], ...] = ()
    producer: tuple[int, int] | None = None


@dataclass(slots=True)
class Draft:
    """A decision while it is being made."""

    group: str
    records: list[GroupRecord] = field(default_factory=list)
    replies: list[tuple[Token, Any]] = field(default_factory=list)

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append((token, response))

    def decision(self, producer: tuple[int, int] | None = None) -> GroupDecision:
        return GroupDecision(self.group, tuple(self.records), tuple(self.replies), producer)


def answer(group: str, token: Token, response: Any) -> GroupDecision:
    """A decision that changes nothing."""
    return GroupDecision(group, replies=((token, response),))
