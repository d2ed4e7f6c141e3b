"""The cluster, as a dual writer reaches it: a producer per slot and one admin client."""

import re
from collections.abc import Iterable

from dualwrite.admin import (
    BrokerFeatures,
    TransactionAdmin,
    TransactionDescription,
    TransactionListing,
)
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.writer_settings import WriterSettings


class KafkaAccess:
    """`surroundings.Kafka` with blocking calls."""

    def __init__(self, settings: WriterSettings) -> None:
        self._settings = settings
        self._admin = TransactionAdmin(settings.admin_config)

    def producer(self, transactional_id: str, *, two_phase: bool) -> TwoPhaseProducer:
        config = self._settings.producer_config(transactional_id, two_phase=two_phase)
        return TwoPhaseProducer(config)

    def cluster_id(self) -> str:
        return self._admin.cluster_id()

    def features(self) -> BrokerFeatures:
        return self._admin.features()

    def describe(self, transactional_id: str) -> TransactionDescription | None:
        return self._admin.describe_transactions([transactional_id])[transactional_id]

    def open_ids(self, pattern: str) -> list[str]:
        listed = self._admin.list_transactions(states=["Ongoing"], id_pattern=pattern)
        return full_matches(pattern, listed)

    def end_txn(self, transactional_id: str, pair: PreparedTxnState, commit: bool) -> None:
        self._admin.end_txn(transactional_id, pair.producer_id, pair.epoch, commit)

    def close(self) -> None:
        self._admin.close()


def full_matches(pattern: str, listed: Iterable[TransactionListing]) -> list[str]:
    """The ids that match in full: with a mere prefix they would be another app's."""
    ids = [entry.transactional_id for entry in listed]
    return [name for name in ids if re.fullmatch(pattern, name, re.ASCII)]
