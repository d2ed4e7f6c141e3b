"""What one partition knows of its producers: sequences, epochs, open and aborted transactions."""

from dualwrite.broker.producers.aborted import AbortedTxn, decode_aborted, encode_aborted
from dualwrite.broker.producers.snapshots import SnapshotError, decode_snapshot, encode_snapshot
from dualwrite.broker.producers.states import LastRecord, ProducerStates, ProducerView
from dualwrite.broker.producers.verdicts import (
    ACCEPT,
    Accept,
    Duplicate,
    Origin,
    Refuse,
    Standing,
    Verdict,
)

__all__ = [
    "ACCEPT",
    "AbortedTxn",
    "Accept",
    "Duplicate",
    "LastRecord",
    "Origin",
    "ProducerStates",
    "ProducerView",
    "Refuse",
    "SnapshotError",
    "Standing",
    "Verdict",
    "decode_aborted",
    "decode_snapshot",
    "encode_aborted",
    "encode_snapshot",
]
