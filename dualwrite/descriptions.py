"""What the administrator is shown of transactions and producers."""

from collections.abc import Mapping
from dataclasses import dataclass

from dualwrite.prepared import PreparedTxnState

TWO_PHASE_TIMEOUT_MS = 2**31 - 1
"""What a transaction that never times out shows as its timeout (KIP-939)."""


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One line of `list_transactions`."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class FinishedTransaction:
    """The transaction that an id finished last, which only the bundled broker remembers."""

    pair: PreparedTxnState
    outcome: str
    """"commit" or "abort"."""
    cause: str
    """"client", "timeout", "fenced" or "forced"."""

    def __str__(self) -> str:
        return f"{self.pair}, {self.outcome} ({self.cause})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id."""

    transactional_id: str
    state: str
    """Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""
    pair: PreparedTxnState
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[tuple[str, int], ...]
    coordinator: int
    """Node id of the coordinator."""
    last_finished: FinishedTransaction | None = None

    @property
    def producer_id(self) -> int:
        return self.pair.producer_id

    @property
    def epoch(self) -> int:
        return self.pair.epoch

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """A producer that writes to a partition."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
    """First offset of its open transaction, or -1."""


@dataclass(frozen=True, slots=True)
class BrokerFeatures:
    """What the cluster offers: finalized feature levels and the versions of one of its brokers."""

    finalized: Mapping[str, int]
    api_versions: Mapping[int, tuple[int, int]]

    @property
    def transaction_version(self) -> int:
        return self.finalized.get("transaction.version", 0)

    def offers(self, api_key: int, version: int) -> bool:
        low, high = self.api_versions.get(api_key, (0, -1))
        return low <= version <= high
