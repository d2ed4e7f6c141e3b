"""`TransactionAdmin`: looking at transactions from outside, and ending them by hand.

Every call blocks until the answer is there; `KafkaTimeout` after `max.block.ms`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dualwrite.config import parse_config
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


class TransactionAdmin:
    """The administrator's view of transactions, by librdkafka's configuration keys."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = parse_config(config, transactional=False)

    def list_transactions(
        self,
        states: Iterable[str] | None = None,
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """List the transactional ids of all brokers; what an old broker cannot filter we do."""
        raise NotImplementedError("the admin client is not built yet")

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | None]:
        """Describe ids; None for one that the coordinator does not know."""
        raise NotImplementedError("the admin client is not built yet")

    def describe_producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """List the producers that have written to a partition, as its leader knows them."""
        raise NotImplementedError("the admin client is not built yet")

    def force_terminate_transaction(self, transactional_id: str) -> None:
        """Abort whatever the id has open, prepared or not, and fence its producer.

        Raises `KafkaError` with code 105 for an id that the coordinator does not know.
        """
        raise NotImplementedError("the admin client is not built yet")

    def end_txn(
        self, transactional_id: str, producer_id: int, epoch: int, commit: bool
    ) -> PreparedTxnState:
        """End exactly this transaction by a raw EndTxn, without taking over the id.

        Returns the pair that the id has afterwards (the empty state where the broker does not
        tell). Raises `KafkaError` with the broker's code when it refuses.
        """
        raise NotImplementedError("the admin client is not built yet")

    def cluster_id(self) -> str:
        """The id of the cluster; "" if the broker has none."""
        raise NotImplementedError("the admin client is not built yet")

    def features(self) -> BrokerFeatures:
        """What the cluster offers."""
        raise NotImplementedError("the admin client is not built yet")

    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> "TransactionAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
