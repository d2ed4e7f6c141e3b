"""A row of a store that keeps values as bytes: JSON, so that an operator can read it."""

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from dualwrite.prepared import PreparedTxnState
from dualwrite.store import Claim, Heuristic, Lease, StoreRow


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """What is kept for one transactional id."""

    transactional_id: str
    state: PreparedTxnState = PreparedTxnState.NONE
    seq: int = 0
    fence: int = 0
    state_fence: int = 0
    owner: str = ""
    cluster_id: str = ""
    updated_at: str = ""

    def claimed(self, owner: str | None) -> "KeptRow":
        return self.changed(fence=self.fence + 1, owner=self.owner if owner is None else owner)

    def remembering(self, state: PreparedTxnState) -> "KeptRow":
        return self.changed(state=state, seq=self.seq + 1, state_fence=self.fence)

    def changed(self, **values: Any) -> "KeptRow":
        return replace(self, updated_at=_now(), **values)

    @property
    def claim(self) -> Claim:
        return Claim(
            state=self.state,
            fence=self.fence,
            seq=self.seq,
            state_fence=self.state_fence,
            cluster_id=self.cluster_id,
        )

    def store_row(self, is_live: bool) -> StoreRow:
        standing = Lease.LIVE if is_live else Lease.EXPIRED
        return StoreRow(
            transactional_id=self.transactional_id,
            state=self.state,
            seq=self.seq,
            fence=self.fence,
            state_fence=self.state_fence,
            owner=self.owner,
            lease=standing if self.owner else Lease.NONE,
            cluster_id=self.cluster_id,
            updated_at=datetime.fromisoformat(self.updated_at) if self.updated_at else None,
        )

    def encode(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "state"}
        return json.dumps(fields | {"prepared_txn_state": str(self.state)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "KeptRow":
        fields = json.loads(data)
        return cls(state=PreparedTxnState.parse(fields.pop("prepared_txn_state")), **fields)


def encode_heuristic(heuristic: Heuristic) -> bytes:
    return json.dumps(
        {
            "transactional_id": heuristic.transactional_id,
            "prepared_txn_state": str(heuristic.state),
            "action": heuristic.action,
            "reason": heuristic.reason,
            "recorded_by": heuristic.recorded_by,
            "recorded_at": _now(),
        }
    ).encode()


def decode_heuristic(data: bytes) -> Heuristic:
    fields = json.loads(data)
    return Heuristic(
        transactional_id=fields["transactional_id"],
        state=PreparedTxnState.parse(fields["prepared_txn_state"]),
        action=fields["action"],
        reason=fields["reason"],
        recorded_by=fields["recorded_by"],
        recorded_at=datetime.fromisoformat(fields["recorded_at"]),
    )


def _now() -> str:
    """For people only: nothing is decided from it."""
    return datetime.now(UTC).isoformat()
