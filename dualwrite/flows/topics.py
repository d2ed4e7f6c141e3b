"""`Topic`: the partitions of a topic and where their leaders are."""

from dataclasses import dataclass

from dualwrite.wire.messages.metadata import MetadataResponseTopic

NO_LEADER = -1
_PARTITIONS_MAX = 1_000_000


@dataclass(slots=True)
class Topic:
    """A topic as metadata showed it last."""

    leaders: list[int]
    """By partition, the node number of the leader or `NO_LEADER`."""

    @classmethod
    def learned(cls, found: MetadataResponseTopic) -> "Topic":
        count = 1 + max(partition.partition_index for partition in found.partitions)
        leaders = [NO_LEADER] * min(count, _PARTITIONS_MAX)
        for partition in found.partitions:
            if 0 <= partition.partition_index < len(leaders):
                leaders[partition.partition_index] = partition.leader_id
        return cls(leaders)

    @property
    def available(self) -> list[int]:
        """The partitions that have a leader; all if none has."""
        found = [index for index, leader in enumerate(self.leaders) if leader != NO_LEADER]
        return found or list(range(len(self.leaders)))
