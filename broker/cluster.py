"""The cluster's identity and the counters that never go back: a state machine fed by meta records."""

import base64
from typing import Final

from dualwrite.broker.topics import MetaRecord
from dualwrite.broker.transactions.producer_ids import ProducerIds, first_producer_id

STARTED: Final = "broker_started"
PRODUCER_IDS: Final = "producer_ids_reserved"
CONFIGURED: Final = "broker_configured"
META_KINDS: Final = frozenset({STARTED, PRODUCER_IDS, CONFIGURED})


class Cluster:
    """What a restarted broker must know of its earlier lives."""

    def __init__(self) -> None:
        self.id = ""
        self.coordinator_epoch = -1
        self.configs: dict[str, str] = {}
        self.producer_ids = ProducerIds(0)

    def replay(self, record: MetaRecord) -> None:
        """Apply one meta record of `META_KINDS`."""
        match record["kind"]:
            case "broker_started":
                self.id = record["cluster_id"]
                self.coordinator_epoch = record["coordinator_epoch"]
            case "producer_ids_reserved":
                self.producer_ids.replay(record["end"])
            case "broker_configured":
                self.configs = dict(record["configs"])
            case kind:
                raise ValueError(f"not a record of the cluster: {kind}")

    def meta_records(self) -> list[MetaRecord]:
        """Records that rebuild this state."""
        return [
            self._started(self.coordinator_epoch),
            _reserved(self.producer_ids.snapshot()),
            {"kind": CONFIGURED, "configs": self.configs},
        ]

    def starting(self, wanted_id: str | None, wall_ms: int, chance: bytes) -> list[MetaRecord]:
        """The records of a start: a higher coordinator epoch, and an identity the first time.

        `chance` is at least 20 random bytes.
        """
        if self.id:
            return [self._started(self.coordinator_epoch + 1)]
        self.id = wanted_id or base64.urlsafe_b64encode(chance[:16]).decode().rstrip("=")
        first = first_producer_id(wall_ms, int.from_bytes(chance[16:20]))
        return [self._started(0), _reserved(first)]

    def reservation(self) -> MetaRecord | None:
        """What must be journalled before a producer id that was taken is told to anybody."""
        end = self.producer_ids.unsaved
        return None if end is None else _reserved(end)

    def _started(self, epoch: int) -> MetaRecord:
        return {"kind": STARTED, "cluster_id": self.id, "coordinator_epoch": epoch}


def _reserved(end: int) -> MetaRecord:
    return {"kind": PRODUCER_IDS, "end": end}
