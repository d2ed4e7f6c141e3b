"""Formats: `__transaction_state` (5.1), hashing (2.12), producer ids, dialects (2.4, 2.8, 2.9)."""

import pytest

from dualwrite.broker.transactions.dialect import dialect, is_transaction_v2
from dualwrite.broker.transactions.partitioning import java_hash, partition_for
from dualwrite.broker.transactions.producer_ids import BLOCK, ProducerIds, first_producer_id
from dualwrite.broker.transactions.records import (
    decode_record,
    encode_key,
    encode_value,
    tombstone,
)
from dualwrite.broker.transactions.state import (
    TWO_PHASE_TIMEOUT_MS,
    Cause,
    Outcome,
    PartitionRef,
    Transaction,
    TxnState,
)
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import WireError

EMPTY = Transaction(
    transactional_id="tx-1",
    producer_id=42,
    producer_epoch=0,
    timeout_ms=60_000,
    state=TxnState.EMPTY,
    update_ms=1_700_000_000_000,
    previous_producer_id=42,
    client_transaction_version=2,
)
DUAL = Transaction(
    transactional_id="tx-1",
    producer_id=42,
    producer_epoch=100,
    timeout_ms=TWO_PHASE_TIMEOUT_MS,
    state=TxnState.ONGOING,
    update_ms=1_700_000_000_000,
    start_ms=1_699_999_999_000,
    partitions=frozenset({PartitionRef("orders", 0), PartitionRef("orders", 3)}),
    previous_producer_id=42,
    next_producer_id=42,
    next_producer_epoch=101,
    client_transaction_version=2,
)
EMPTY_VECTOR = (
    "0001000000000000002a00000000ea6000000000018bcfe56800ffffffffffffffff"
    "020008000000000000002a02020002"
)
DUAL_VECTOR = (
    "0001000000000000002a00647fffffff0102076f7264657273030000000000000003000000018bcfe5680000"
    "00018bcfe56418040008000000000000002a0108000000000000002a0202000203020065"
)


def test_key_vector():
    assert encode_key("tx-1").hex() == "0000000474782d31"


@pytest.mark.parametrize(
    ("transaction", "vector"), [(EMPTY, EMPTY_VECTOR), (DUAL, DUAL_VECTOR)], ids=["empty", "dual"]
)
def test_value_vectors(transaction, vector):
    assert encode_value(transaction).hex() == vector
    assert decode_record(encode_key("tx-1"), bytes.fromhex(vector)) == transaction


def test_everything_comes_back():
    full = DUAL._replace(
        transactional_id="zahlung-ü-😀",
        update_steady_ms=5,
        start_steady_ms=3,
        last_producer_epoch=99,
        last_finished_producer_id=41,
        last_finished_producer_epoch=7,
        last_outcome=Outcome.ABORT,
        last_cause=Cause.FORCED,
        partitions=DUAL.partitions | {PartitionRef("a", 1)},
    )

    assert decode_record(encode_key(full.transactional_id), encode_value(full)) == full


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("cause", Cause)
def test_each_outcome_and_cause_comes_back(outcome, cause):
    record = EMPTY._replace(last_outcome=outcome, last_cause=cause)

    assert decode_record(encode_key("tx-1"), encode_value(record)) == record


def test_version_0_is_read():
    value = bytes.fromhex(
        "0000" "000000000000002a" "0005" "0000ea60" "01"
        "00000001" "0006" "6f7264657273" "00000001" "00000003"
        "0000018bcfe56800" "0000018bcfe56418"
    )  # fmt: skip

    record = decode_record(encode_key("tx-1"), value)

    assert record.pair == (42, 5)
    assert record.state is TxnState.ONGOING
    assert record.partitions == {PartitionRef("orders", 3)}
    assert record.next_producer_epoch == -1


def test_tombstone():
    gone = tombstone("tx-1", 7)

    assert encode_value(gone) is None
    assert decode_record(encode_key("tx-1"), None).state is TxnState.DEAD


def test_keys_of_a_later_kind_are_skipped():
    assert decode_record(bytes.fromhex("0001") + encode_key("tx-1")[2:], b"?") is None


@pytest.mark.parametrize("cut", range(len(EMPTY_VECTOR) // 2))
def test_cut_values_are_refused(cut):
    with pytest.raises(WireError):
        decode_record(encode_key("tx-1"), bytes.fromhex(EMPTY_VECTOR)[:cut])


@pytest.mark.parametrize("cut", range(len(encode_key("tx-1"))))
def test_cut_keys_are_refused(cut):
    with pytest.raises(WireError):
        decode_record(encode_key("tx-1")[:cut], None)


@pytest.mark.parametrize("status", [-1, 6, 7, 8])
def test_states_that_are_never_persisted_are_refused(status):
    value = bytearray.fromhex(EMPTY_VECTOR)
    value[16] = status & 0xFF

    with pytest.raises(WireError):
        decode_record(encode_key("tx-1"), bytes(value))


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("my-txn", 45),
        ("tx-1", 20),
        ("test-2pc", 16),
        ("transactional-producer", 8),
        ("group-1", 49),
        ("a", 47),
        ("polygenelubricants", 0),
    ],
)
def test_hash_vectors(name, partition):
    assert partition_for(name, 50) == partition


def test_hash_counts_utf_16_units():
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("😀") == 31 * 0xD83D + 0xDE00


# Producer ids (T-14)


def test_ids_are_reserved_in_blocks_before_they_are_used():
    ids = ProducerIds(5_000)
    assert ids.unsaved is None

    assert ids.take() == 5_000
    assert ids.unsaved == 5_000 + BLOCK
    ids.replay(ids.unsaved)
    assert ids.unsaved is None
    for expected in range(5_001, 5_000 + BLOCK):
        assert ids.take() == expected
        assert ids.unsaved is None
    assert ids.take() == 5_000 + BLOCK
    assert ids.unsaved == 5_000 + 2 * BLOCK


def test_restart_goes_on_behind_the_last_block():
    ids = ProducerIds(5_000)
    ids.take()
    end = ids.unsaved
    ids.replay(end)

    restarted = ProducerIds(first=1)  # drawn anew, and overruled by what the journal knows
    restarted.replay(ids.snapshot())

    assert restarted.take() == end


def test_block_that_was_never_journalled_is_not_skipped_silently():
    ids = ProducerIds(0)
    for _ in range(BLOCK + 1):
        ids.take()

    assert ids.unsaved == 2 * BLOCK


def test_wiped_directories_do_not_share_ids():
    second, month = 1_000, 30 * 86_400_000
    start = 1_700_000_000_000

    assert first_producer_id(start, 0) != first_producer_id(start, 1)
    assert first_producer_id(start + second, 0) > first_producer_id(start, 999) + BLOCK - 1
    assert first_producer_id(start + 1200 * month, 2**64) < 2**53
    assert first_producer_id(-5, 3) >= 0


# Dialects

FENCED = ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("key", "knows_from"),
    [
        (ApiKey.INIT_PRODUCER_ID, 4),
        (ApiKey.ADD_PARTITIONS_TO_TXN, 2),
        (ApiKey.ADD_OFFSETS_TO_TXN, 2),
        (ApiKey.END_TXN, 2),
        (ApiKey.PRODUCE, 99),
        (ApiKey.TXN_OFFSET_COMMIT, 99),
    ],
)
def test_fenced_by_version(key, knows_from):
    for version in range(14):
        assert dialect(FENCED, key, version) == (90 if version >= knows_from else 47)


@pytest.mark.parametrize(
    ("error", "v10", "v11", "v12"),
    [
        (0, 0, 0, 0),
        (120, 48, 120, 120),
        (51, 19, 19, 51),
        (13, 19, 19, 19),
        (14, 19, 19, 19),
        (15, 19, 19, 19),
        (16, 19, 19, 19),
        (48, 48, 48, 48),
        (49, 49, 49, 49),
        (3, 3, 3, 3),
    ],
)
def test_produce(error, v10, v11, v12):
    answers = [dialect(ErrorCode(error), ApiKey.PRODUCE, v) for v in (3, 10, 11, 12, 13)]

    assert answers == [v10, v10, v11, v12, v12]


@pytest.mark.parametrize(
    ("error", "v1", "v3", "v5"),
    [
        (120, 48, 48, 120),
        (13, 15, 14, 14),
        (14, 15, 14, 14),
        (3, 15, 15, 15),
        (19, 15, 15, 15),
        (7, 15, 15, 15),
        (6, 16, 16, 16),
        (56, 16, 16, 16),
        (51, 51, 51, 51),
        (49, 49, 49, 49),
    ],
)
def test_txn_offset_commit(error, v1, v3, v5):
    answers = [dialect(ErrorCode(error), ApiKey.TXN_OFFSET_COMMIT, v) for v in (0, 1, 3, 5)]

    assert answers == [v1, v1, v3, v5]


def test_which_requests_mean_version_2():
    assert [is_transaction_v2(ApiKey.END_TXN, v) for v in (4, 5)] == [False, True]
    assert [is_transaction_v2(ApiKey.PRODUCE, v) for v in (11, 12)] == [False, True]
    assert [is_transaction_v2(ApiKey.TXN_OFFSET_COMMIT, v) for v in (4, 5)] == [False, True]
    assert [is_transaction_v2(ApiKey.ADD_PARTITIONS_TO_TXN, v) for v in (3, 4)] == [False, True]
    assert not is_transaction_v2(ApiKey.ADD_OFFSETS_TO_TXN, 4)
