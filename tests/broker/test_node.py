"""The node driven by hand: when answers leave, what time does, what a power loss leaves."""

import pytest

from dualwrite.broker.storage.errors import DiskFull, StorageFailed
from dualwrite.broker.storage.memory_disk import Fault, MemoryDisk
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_transactions import DescribeTransactionsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from dualwrite.wire.messages.metadata import MetadataRequest
from dualwrite.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.node_driver import WALL_MS, NodeDriver
from tests.broker.raw_client import batch, fetch_request, produce_request


@pytest.fixture
def driver():
    running = NodeDriver()
    running.create_topic()
    return running


def test_no_answer_leaves_before_what_it_rests_on_is_durable(driver):
    pair = driver.begin("orders")
    delivered = driver.connection.responses
    data = batch(b"y", pair=pair, sequence=1, transactional=True, timestamp_ms=WALL_MS)
    request = produce_request("t", data, transactional_id="orders")
    part = ListOffsetsPartition(timestamp=-1)

    driver.send(request, 12)  # new
    driver.send(request, 12)  # a duplicate of what is not durable yet
    driver.send(EndTxnRequest("orders", *pair, True), 5)
    driver.send(EndTxnRequest("orders", *pair, True), 5)  # a retry
    driver.send(EndTxnRequest("orders", *pair, False), 5)  # an error that rests on the commit
    driver.send(ListOffsetsRequest(topics=[ListOffsetsTopic("t", [part])]), 7)
    driver.send(MetadataRequest(topics=None), 12)
    driver.node.release(driver.now)  # as after an earlier group, while this one is being written
    assert delivered == []

    driver.node.flush(driver.now)
    assert len(delivered) == 7
    assert delivered[4].error_code == ErrorCode.INVALID_TXN_STATE


def test_readers_do_not_see_what_is_not_durable(driver):
    driver.produce(b"durable")
    driver.send(produce_request("t", batch(b"not yet", timestamp_ms=WALL_MS)), 11)
    driver.send(fetch_request("t"), 12)
    driver.node.flush(driver.now)

    part = driver.connection.responses[-1].responses[0].partitions[0]

    assert part.high_watermark == 1  # as it was when the fetch was handled


def test_one_flush_serves_all_that_was_handled_before_it(driver):
    before = driver.disk.operations
    for number in range(20):
        driver.send(produce_request("t", batch(b"%d" % number, timestamp_ms=WALL_MS)), 11)
    driver.node.flush(driver.now)

    assert len(driver.connection.responses) == 20
    assert driver.disk.operations - before <= 3


def test_an_ordinary_transaction_is_aborted_when_its_time_is_up(driver):
    pair = driver.begin("orders", transaction_timeout_ms=30_000)

    driver.pass_time(25_000)
    assert driver.last_stable() == 0
    driver.pass_time(20_000)

    assert driver.last_stable() == 2
    assert driver.committed() == []
    (shown,) = driver.call(DescribeTransactionsRequest(["orders"]), 0).transaction_states
    assert (shown.transaction_state, shown.last_cause) == ("CompleteAbort", "timeout")
    assert driver.end("orders", pair, commit=False).error_code == 0  # it may still ask for that
    assert driver.end("orders", pair).error_code != 0


def test_a_two_phase_transaction_waits_for_ever(driver):
    pair = driver.begin("orders", enable_2pc=True)

    driver.pass_time(2 * 3_600_000)

    assert driver.last_stable() == 0
    assert driver.end("orders", pair).error_code == 0
    assert driver.committed() == [b"x"]


def test_the_rest_of_a_timeout_is_left_after_a_crash(driver):
    driver.begin("orders", transaction_timeout_ms=60_000)
    driver.pass_time(50_000)
    driver.produce(b"a sign of life", topic="t")  # the journal remembers how late it is

    driver.crash()
    driver.pass_time(5_000)
    assert driver.last_stable() == 0
    driver.pass_time(20_000)

    assert driver.last_stable() > 0


def test_a_jump_of_the_wall_clock_aborts_nothing(driver):
    driver.begin("orders", transaction_timeout_ms=60_000)
    steady = driver.now.steady_ms

    driver.node.tick(driver.now._replace(wall_ms=WALL_MS + 10 * 365 * 86_400_000))
    driver.node.tick(driver.now._replace(wall_ms=0, steady_ms=steady + 20_000))
    driver.node.flush(driver.now)

    assert driver.last_stable() == 0


def test_an_unused_id_is_forgotten_and_one_with_an_open_transaction_is_not():
    driver = NodeDriver(transactional_id_expiration_ms=600_000, producer_id_expiration_ms=600_000)
    driver.create_topic()
    driver.end("idle", driver.begin("idle"))
    driver.begin("open", enable_2pc=True)

    driver.pass_time(5_000_000)

    states = driver.call(DescribeTransactionsRequest(["idle", "open"]), 0).transaction_states
    assert [s.error_code for s in states] == [ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, 0]
    assert driver.node.find_log("t", 0).producers.first_unstable == 2


def test_everything_acknowledged_is_there_after_a_power_loss(driver):
    driver.end("done", driver.begin("done", b"done"))
    open_pair = driver.begin("open", b"open", enable_2pc=True)
    driver.send(produce_request("t", batch(b"not acknowledged", timestamp_ms=WALL_MS)), 11)

    driver.crash()

    assert driver.committed() == [b"done"]
    again = driver.init("open", enable_2pc=True, keep_prepared_txn=True)
    assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == open_pair
    ended = driver.end("open", (again.producer_id, again.producer_epoch))
    assert ended.error_code == 0
    assert driver.committed() == [b"done", b"open"]


def test_a_checkpoint_and_the_journal_behind_it_give_the_same_state(driver):
    driver.begin("before", b"before", enable_2pc=True)
    driver.pass_time(60_000)  # a checkpoint is due by then
    driver.end("after", driver.begin("after", b"after"))

    driver.crash()

    shown = driver.call(DescribeTransactionsRequest(["before", "after"]), 0).transaction_states
    assert [s.transaction_state for s in shown] == ["Ongoing", "CompleteCommit"]
    assert driver.last_stable() == 0


def test_a_failed_sync_answers_nobody(driver):
    driver.disk.fault = lambda number, what, path: Fault.EIO if what == "fdatasync" else None
    driver.send(produce_request("t", batch(b"x", timestamp_ms=WALL_MS)), 11)

    with pytest.raises(StorageFailed):
        driver.node.flush(driver.now)

    assert driver.connection.responses == []
    with pytest.raises(StorageFailed):
        driver.send(produce_request("t", batch(b"x", timestamp_ms=WALL_MS)), 11)


def test_on_a_full_disk_producers_are_refused_and_transactions_end():
    disk = MemoryDisk(capacity=3_000_000)
    driver = NodeDriver(disk, journal_file_bytes=1_000_000, journal_reserve_bytes=200_000)
    driver.create_topic()
    pair = driver.begin("prepared", b"prepared", enable_2pc=True)
    code = 0
    for _ in range(200):
        driver.send(produce_request("t", batch(b"x" * 50_000, timestamp_ms=WALL_MS)), 11)
        try:
            driver.node.flush(driver.now)
        except DiskFull:
            break
        code = driver.connection.responses.pop().responses[0].partition_responses[0].error_code
        if code:
            break
    assert code == ErrorCode.KAFKA_STORAGE_ERROR

    assert driver.end("prepared", pair).error_code == 0
    assert driver.init("another").error_code == 0
    part = driver.call(fetch_request("t", isolation_level=1), 12).responses[0].partitions[0]
    assert part.error_code == 0
    disk.capacity = 30_000_000
    driver.pass_time(10_000)
    assert driver.produce(b"there is room again").error_code == 0


def marker_request(pair, *, commit=False):
    marker = WritableTxnMarker(
        producer_id=pair[0],
        producer_epoch=pair[1],
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def test_an_operators_marker_does_not_tear_an_open_transaction_apart(driver):
    pair = driver.begin("orders", enable_2pc=True)

    (result,) = driver.call(marker_request(pair), 1).markers

    code = result.topics[0].partitions[0].error_code
    assert code == ErrorCode.INVALID_TXN_STATE
    assert driver.last_stable() == 0


def test_a_partition_that_is_offline_delays_the_end_but_not_the_decision(driver):
    driver.create_topic("u")
    pair = driver.begin("orders")
    data = batch(b"y", pair=pair, sequence=0, transactional=True, timestamp_ms=WALL_MS)
    driver.call(produce_request("u", data, transactional_id="orders"), 12)
    damaged = driver.node.find_log("u", 0)
    damaged.take_offline("for this test")

    assert driver.end("orders", pair).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.committed("t") == [b"x"]
    assert driver.end("orders", pair, commit=False).error_code == 51
    driver.node.delete_topic(driver.node.topics.get("u"), driver.now)

    assert driver.end("orders", pair).error_code == 0


@pytest.mark.parametrize("is_offline", [False, True])
def test_an_abort_by_force_is_in_the_log_when_it_is_decided(driver, caplog, is_offline):
    pair = driver.begin("orders", enable_2pc=True)
    if is_offline:
        driver.node.find_log("t", 0).take_offline("for this test")

    with caplog.at_level("WARNING"):
        driver.init("orders")

    (line,) = [record.getMessage() for record in caplog.records if "force" in record.getMessage()]
    assert f"producer_id={pair[0]}, producer_epoch={pair[1]}" in line
    assert "'orders'" in line
