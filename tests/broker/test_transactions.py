"""Transactions as requests see them, over both versions of the protocol."""

import pytest

from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from dualwrite.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from dualwrite.wire.messages.describe_transactions import DescribeTransactionsRequest
from dualwrite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from dualwrite.wire.messages.list_transactions import ListTransactionsRequest
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import batch, produce_request


@pytest.fixture
def driver():
    running = NodeDriver()
    running.create_topic()
    return running


def add_partition(driver, pair, transactional_id="orders", version=3):
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=pair[0],
        v3_and_below_producer_epoch=pair[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    (result,) = driver.call(request, version).results_by_topic_v3_and_below
    return result.results_by_partition[0].partition_error_code


def write(driver, pair, *, sequence=0, version=11, transactional_id="orders", value=b"x"):
    data = batch(value, pair=pair, sequence=sequence, transactional=True, timestamp_ms=WALL_MS)
    request = produce_request("t", data, transactional_id=transactional_id)
    return driver.call(request, version).responses[0].partition_responses[0].error_code


def pair_of(answer):
    return (answer.producer_id, answer.producer_epoch)


@pytest.mark.parametrize(("version", "code"), [(9, 48), (10, 48), (11, 120)])
def test_an_old_client_must_add_its_partition_first(driver, version, code):
    pair = pair_of(driver.init("orders", 4))

    assert write(driver, pair, version=version) == code
    assert add_partition(driver, pair) == 0
    assert write(driver, pair, version=version) == 0
    assert driver.end("orders", pair, version=3).error_code == 0
    assert driver.committed() == [b"x"]


def test_a_late_write_opens_no_transaction_that_nobody_ends(driver):
    """KAFKA-14402: the record of a transaction that is over must not begin another one."""
    pair = pair_of(driver.init("orders", 4))
    add_partition(driver, pair)
    write(driver, pair)
    driver.end("orders", pair, version=3)

    assert write(driver, pair, sequence=1) == ErrorCode.TRANSACTION_ABORTABLE
    assert driver.last_stable() == driver.node.find_log("t", 0).high_watermark


def test_version_2_moves_the_pair_with_every_transaction(driver):
    first = driver.begin("orders")
    ended = driver.end("orders", first)
    second = pair_of(ended)

    assert second == (first[0], first[1] + 1)
    assert pair_of(driver.end("orders", first)) == second  # a retry gets the same answer
    assert write(driver, second, version=12) == 0
    # KAFKA-17754: what arrives late must not end the next transaction.
    assert driver.end("orders", first).error_code == ErrorCode.PRODUCER_FENCED
    assert driver.end("orders", first, commit=False).error_code == ErrorCode.PRODUCER_FENCED
    assert write(driver, first, version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert driver.end("orders", second).error_code == 0


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_with_partitions_and_no_records_ends_well(driver, commit):
    pair = pair_of(driver.init("orders", 4))
    add_partition(driver, pair)

    assert driver.end("orders", pair, commit, version=3).error_code == 0
    assert driver.end("orders", pair, commit, version=3).error_code == 0
    refused = driver.end("orders", pair, not commit, version=3)
    assert refused.error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("epoch_max", [3, 4, 5])
def test_pairs_stay_unique_when_epochs_run_out(epoch_max):
    driver = NodeDriver(producer_epoch_max=epoch_max)
    driver.create_topic()
    pair = pair_of(driver.init("orders"))
    seen = {pair}
    for number in range(12):
        assert write(driver, pair, version=12, value=b"%d" % number) == 0
        before = pair
        pair = pair_of(driver.end("orders", pair))
        assert pair_of(driver.end("orders", before)) == pair
        assert pair not in seen
        assert pair[1] < epoch_max
        seen.add(pair)
        if number % 4 == 3:
            driver.crash()

    assert driver.committed() == [b"%d" % number for number in range(12)]
    assert len({producer_id for producer_id, _ in seen}) > 1


@pytest.mark.parametrize("epoch_max", [3, 5])
def test_recovery_after_recovery_finds_the_same_transaction(epoch_max):
    driver = NodeDriver(producer_epoch_max=epoch_max)
    driver.create_topic()
    ongoing = driver.begin("orders", enable_2pc=True)
    older = []
    for number in range(8):
        answer = driver.init("orders", enable_2pc=True, keep_prepared_txn=True)
        found = (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        assert found == ongoing
        older.append(pair_of(answer))
        if number % 3 == 2:
            driver.crash()
    newest = older.pop()

    codes = {driver.end("orders", pair).error_code for pair in [ongoing, *older]}
    assert codes <= {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert write(driver, newest, version=12) == ErrorCode.INVALID_TXN_STATE
    assert write(driver, ongoing, version=12, sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert driver.end("orders", newest).error_code == 0
    assert driver.committed() == [b"x"]


def test_init_without_keeping_aborts_and_answers_at_once(driver):
    old = driver.begin("orders")

    answer = driver.init("orders")

    assert answer.error_code == 0
    assert (answer.last_producer_id, answer.last_producer_epoch) == old
    assert (answer.last_outcome, answer.last_cause) == ("abort", "fenced")
    assert driver.committed() == []
    assert driver.last_stable() == 2


def test_force_is_remembered_as_force(driver):
    old = driver.begin("orders", enable_2pc=True)
    driver.init("orders", 5)  # what an operator's tool sends
    driver.crash()

    (shown,) = driver.call(DescribeTransactionsRequest(["orders"]), 0).transaction_states

    assert (shown.last_producer_id, shown.last_producer_epoch) == old
    assert (shown.last_outcome, shown.last_cause) == ("abort", "forced")


def commit_offsets(driver, pair, offset, version):
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id="orders",
        group_id="readers",
        producer_id=pair[0],
        producer_epoch=pair[1],
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    return driver.call(request, version).topics[0].partitions[0].error_code


def committed_offset(driver):
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id="readers", topics=topics)
    answer = driver.call(OffsetFetchRequest(groups=[group], require_stable=True), 8)
    part = answer.groups[0].topics[0].partitions[0]
    return part.error_code, part.committed_offset


@pytest.mark.parametrize("tv2", [True, False])
def test_offsets_of_a_transaction_show_when_it_commits(driver, tv2):
    pair = pair_of(driver.init("orders"))
    end_version, commit_version = (5, 5) if tv2 else (3, 3)

    def send(offset):
        if not tv2:
            request = AddOffsetsToTxnRequest("orders", *pair, "readers")
            assert driver.call(request, 3).error_code == 0
        assert commit_offsets(driver, pair, offset, commit_version) == 0

    send(3)
    assert committed_offset(driver) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    ended = driver.end("orders", pair, version=end_version)
    assert committed_offset(driver) == (0, 3)  # KAFKA-17507: with the answer, not later
    pair = pair_of(ended) if tv2 else pair
    send(9)
    driver.crash()
    assert committed_offset(driver) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    driver.end("orders", pair, commit=False, version=end_version)
    assert committed_offset(driver) == (0, 3)
    driver.crash()
    assert committed_offset(driver) == (0, 3)


def test_offsets_of_a_fenced_producer_are_refused(driver):
    pair = pair_of(driver.init("orders"))
    driver.init("orders")

    assert commit_offsets(driver, pair, 3, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed_offset(driver) == (0, -1)


def test_operators_see_transactions_and_producers(driver):
    open_pair = driver.begin("open", enable_2pc=True)
    driver.end("done", driver.begin("done"))

    listing = driver.call(ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]), 2)
    by_pattern = driver.call(ListTransactionsRequest(transactional_id_pattern="d.*"), 2)
    bad = driver.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
    (shown,) = driver.call(DescribeTransactionsRequest(["open"]), 0).transaction_states
    topics = [TopicRequest(name="t", partition_indexes=[0])]
    (described,) = driver.call(DescribeProducersRequest(topics=topics), 0).topics

    assert [t.transactional_id for t in listing.transaction_states] == ["open"]
    assert listing.unknown_state_filters == ["Nonsense"]
    assert [t.transactional_id for t in by_pattern.transaction_states] == ["done"]
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert pair_of(shown) == open_pair
    assert shown.transaction_timeout_ms == 2**31 - 1
    assert [(t.topic, t.partitions) for t in shown.topics] == [("t", [0])]
    first_offsets = {
        p.producer_id: p.current_txn_start_offset for p in described.partitions[0].active_producers
    }
    assert first_offsets[open_pair[0]] == 0
    assert -1 in first_offsets.values()


def test_the_end_of_the_log_depends_on_the_isolation(driver):
    driver.begin("open")
    driver.produce(b"plain")

    def end(isolation_level):
        part = ListOffsetsPartition(timestamp=-1)
        request = ListOffsetsRequest(
            isolation_level=isolation_level, topics=[ListOffsetsTopic("t", [part])]
        )
        return driver.call(request, 5).topics[0].partitions[0].offset

    assert (end(0), end(1)) == (2, 0)


@pytest.mark.parametrize(("level", "enable_2pc", "keep"), [(1, True, False), (0, False, True)])
def test_two_phase_commit_needs_transaction_version_2(level, enable_2pc, keep):
    driver = NodeDriver(transaction_version=level)

    answer = driver.init("orders", enable_2pc=enable_2pc, keep_prepared_txn=keep)

    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_two_phase_commit_can_be_switched_off():
    driver = NodeDriver(transaction_two_phase_commit_enable=False)

    refused = driver.init("orders", enable_2pc=True)

    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_principal_may_have_so_many_ids_and_open_two_phase_transactions():
    driver = NodeDriver(
        max_transactional_ids_per_principal=3, max_open_two_phase_transactions_per_principal=1
    )
    driver.create_topic()
    pair = driver.begin("first", enable_2pc=True)
    driver.crash()

    with pytest.raises(AssertionError, match=f"error_code={ErrorCode.TRANSACTION_ABORTABLE:d}"):
        driver.begin("second", enable_2pc=True)
    driver.begin("third")
    too_many = driver.init("fourth")
    again = driver.init("first", enable_2pc=True, keep_prepared_txn=True)
    driver.end("first", pair_of(again))
    driver.begin("second", enable_2pc=True)

    assert too_many.error_code == ErrorCode.POLICY_VIOLATION
    assert again.error_code == 0
    assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == pair
