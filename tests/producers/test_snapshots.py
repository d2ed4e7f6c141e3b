"""The bytes of producer snapshots, transaction indexes and markers."""

import pytest

from dualwrite.broker.clock import Now
from dualwrite.broker.producers import (
    AbortedTxn,
    Duplicate,
    ProducerStates,
    SnapshotError,
    decode_aborted,
    decode_snapshot,
    encode_aborted,
    encode_snapshot,
)
from dualwrite.broker.producers.snapshots import encode_snapshot_for_kafka
from dualwrite.wire.records import EndMarker, control_batch
from tests.producers.test_states import NOW, Partition, header

# protocol.md 4.1, 4.7 and 4.8
MARKER = (
    "000000000000000000000042ffffffff02c979b1980030000000000000018bcfe568000000018bcfe56800"
    "000000000000002a0065ffffffff000000012000000008000000010c00000000000700"
)
INDEX_ENTRY = "0000000000000000002a000000000000000a000000000000000f0000000000000010"
SNAPSHOT = (
    "000179840a7c00000001000000000000002a0065ffffffffffffffffffffffff00000000"
    "0000018bcfe5680000000007ffffffffffffffff"
)


def test_marker_vector():
    batch = control_batch(
        commit=True,
        producer_id=42,
        producer_epoch=101,
        coordinator_epoch=7,
        timestamp_ms=1_700_000_000_000,
    )
    assert batch.hex() == MARKER
    assert EndMarker.parse(batch) == EndMarker(True, 42, 101, 7)


def test_transaction_index_vector():
    entry = AbortedTxn(42, 10, 15, 16)
    assert encode_aborted([entry]).hex() == INDEX_ENTRY
    assert decode_aborted(bytes.fromhex(INDEX_ENTRY)) == [entry]


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex(INDEX_ENTRY)[:-1],
        b"\x00\x01" + bytes.fromhex(INDEX_ENTRY)[2:],
        bytes.fromhex(INDEX_ENTRY) * 2,
    ],
)
def test_a_bad_transaction_index_is_refused(data):
    with pytest.raises(ValueError):
        decode_aborted(data)


def test_snapshot_vector():
    states = ProducerStates()
    states.apply_marker(EndMarker(True, 42, 101, 7), 0, Now(1_700_000_000_000, 0))
    assert encode_snapshot_for_kafka(states.producers.items()).hex() == SNAPSHOT
    read = decode_snapshot(bytes.fromhex(SNAPSHOT))
    state = read.producers[42]
    assert (state.epoch, state.coordinator_epoch, state.batches) == (101, 7, [])
    assert state.last_timestamp == 1_700_000_000_000


def busy_partition():
    partition = Partition()
    for sequence in range(7):
        partition.append(header(sequence * 2, count=2, producer=1))
    partition.append(header(0, producer=2, transactional=True))
    partition.append(header(0, producer=3, epoch=4, transactional=True))
    partition.mark(producer=3, epoch=5, commit=False, tv2=True)
    return partition


def test_a_snapshot_holds_everything():
    partition = busy_partition()
    data = encode_snapshot(partition.states)

    restored = decode_snapshot(data)

    assert encode_snapshot(restored) == data
    assert list(restored.aborted) == list(partition.states.aborted)
    assert restored.last_stable(partition.end) == partition.states.last_stable(partition.end) == 14
    for sequence in range(4, 14, 2):
        verdict = restored.check(header(sequence, count=2, producer=1))
        assert verdict == Duplicate(sequence, sequence + 1, NOW.wall_ms)


def test_a_snapshot_may_leave_earlier_aborted_transactions_out():
    partition = busy_partition()
    assert len(decode_snapshot(encode_snapshot(partition.states, aborted_from=16)).aborted) == 1
    assert len(decode_snapshot(encode_snapshot(partition.states, aborted_from=17)).aborted) == 0


def test_any_flipped_bit_or_cut_is_noticed():
    data = encode_snapshot(busy_partition().states)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotError):
            decode_snapshot(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(SnapshotError):
            decode_snapshot(data[:size])
