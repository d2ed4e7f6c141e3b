"""One damaged partition of a coordinator's topic: its ids and groups wait, all others are served.

Nobody may conclude from what can't be read that there is nothing: a consumer that is told of no
committed offset begins anew, and a producer whose id is unknown gives up.
"""

import logging

import pytest

from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from dualwrite.wire.messages.describe_groups import DescribeGroupsRequest
from dualwrite.wire.messages.describe_transactions import DescribeTransactionsRequest
from dualwrite.wire.messages.heartbeat import HeartbeatRequest
from dualwrite.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from dualwrite.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from dualwrite.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.node_driver import NodeDriver
from tests.broker.raw_client import batch, produce_request

WAITS = ErrorCode.NOT_COORDINATOR
WEEK_MS = 7 * 24 * 3_600_000


def flipped(disk, path):
    disk.damage(path, lambda data: data.__setitem__(100, data[100] ^ 1))


def missing(disk, path):
    disk.unlink(path)
    disk.fsync_dir(path.rpartition("/")[0])


def state_log(driver, transactional_id):
    return driver.node.storage.logs[driver.node._internal.state_key(transactional_id)]


def group_log(driver, group):
    return driver.node.storage.logs[driver.node._internal.group_key(group)]


def damage_and_restart(driver, log, how):
    storage = driver.node.storage
    for other in storage.logs.values():
        storage.write_behind(other)
    storage.checkpoint(driver.node._snapshot())
    how(driver.disk, log.segments[0].path)
    driver.crash()


def commit_offset(driver, group, offset):
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
    )
    return driver.call(request, 8).topics[0].partitions[0].error_code


def fetched(driver, group):
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    return driver.call(request, 8).groups[0]


def produce(driver, transactional_id, pair, version, topic="t", sequence=0):
    data = batch(
        b"y", pair=pair, sequence=sequence, transactional=True, timestamp_ms=driver._wall_ms
    )
    request = produce_request(topic, data, transactional_id=transactional_id)
    return driver.call(request, version).responses[0].partition_responses[0].error_code


def commit_in_transaction(driver, transactional_id, pair, version):
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id="group",
        producer_id=pair[0],
        producer_epoch=pair[1],
        topics=[TxnOffsetCommitRequestTopic("t", partitions=[TxnOffsetCommitRequestPartition(0)])],
    )
    return driver.call(request, version).topics[0].partitions[0].error_code


def describe(driver, transactional_id):
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return driver.call(request, 0).transaction_states[0]


@pytest.fixture
def driver():
    running = NodeDriver()
    running.create_topic()
    return running


@pytest.mark.parametrize("how", [flipped, missing])
def test_groups_of_a_damaged_partition_wait(driver, how, caplog):
    assert commit_offset(driver, "hit", 5) == 0
    assert commit_offset(driver, "safe", 7) == 0
    assert group_log(driver, "hit") is not group_log(driver, "safe")
    path = group_log(driver, "hit").segments[0].path

    with caplog.at_level(logging.ERROR):
        damage_and_restart(driver, group_log(driver, "hit"), how)

    assert path in caplog.text
    assert fetched(driver, "hit").error_code == WAITS
    old = OffsetFetchRequest("hit", [OffsetFetchRequestTopic("t", [0])])
    assert driver.call(old, 1).topics[0].partitions[0].error_code == WAITS
    assert driver.call(old, 7).error_code == WAITS
    (group,) = driver.call(DescribeGroupsRequest(groups=["hit"]), 5).groups
    assert group.error_code == WAITS
    (group,) = driver.call(ConsumerGroupDescribeRequest(group_ids=["hit"]), 0).groups
    assert group.error_code == WAITS
    assert driver.call(HeartbeatRequest("hit", 1, "member"), 3).error_code == WAITS
    assert commit_offset(driver, "hit", 6) == WAITS
    assert fetched(driver, "safe").topics[0].partitions[0].committed_offset == 7


@pytest.mark.parametrize("how", [flipped, missing])
def test_ids_of_a_damaged_partition_wait(driver, how, caplog):
    hit = driver.begin("hit", enable_2pc=True)
    safe = driver.begin("safe", enable_2pc=True)
    path = state_log(driver, "hit").segments[0].path

    with caplog.at_level(logging.ERROR):
        damage_and_restart(driver, state_log(driver, "hit"), how)

    assert path in caplog.text
    assert describe(driver, "hit").error_code == WAITS
    assert driver.init("hit", keep_prepared_txn=True).error_code == WAITS
    assert driver.end("hit", hit).error_code == WAITS
    # Version by version the code that makes a producer try again, and not give up.
    assert produce(driver, "hit", hit, 9, sequence=1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert produce(driver, "hit", hit, 12, sequence=1) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert commit_in_transaction(driver, "hit", hit, 3) == WAITS
    assert commit_in_transaction(driver, "hit", hit, 5) == WAITS
    kept = driver.init("safe", keep_prepared_txn=True)
    assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == safe
    assert driver.end("safe", (kept.producer_id, kept.producer_epoch)).error_code == 0


def test_nobody_ends_by_hand_what_the_coordinator_cannot_look_up(driver):
    pair = driver.begin("hit", enable_2pc=True)
    damage_and_restart(driver, state_log(driver, "hit"), missing)
    topics = [WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    marker = WritableTxnMarker(
        producer_id=pair[0], producer_epoch=pair[1], transaction_result=False, topics=topics
    )

    (result,) = driver.call(WriteTxnMarkersRequest(markers=[marker]), 1).markers

    assert result.topics[0].partitions[0].error_code == WAITS
    assert driver.last_stable() == 0


def test_damage_that_is_found_later_holds_up_nobody_elses_timeout(driver):
    names = [f"id-{number}" for number in range(8)]
    for name in names:
        driver.create_topic(name)
        driver.begin(name, topic=name, transaction_timeout_ms=30_000)
    state_log(driver, "id-3").take_offline("for this test")
    hit = {name for name in names if state_log(driver, name) is state_log(driver, "id-3")}
    assert len(hit) < len(names) - 1

    driver.pass_time(60_000)

    assert [name for name in names if driver.last_stable(name) == 0] == sorted(hit)


def test_damage_that_is_found_later_keeps_no_other_id_alive(driver):
    names = [f"id-{number}" for number in range(8)]
    for name in names:
        driver.init(name)
    state_log(driver, "id-3").take_offline("for this test")

    driver.pass_time(WEEK_MS + 3_600_000)

    for name in names:
        is_hit = state_log(driver, name) is state_log(driver, "id-3")
        expected = WAITS if is_hit else ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert describe(driver, name).error_code == expected


def test_a_topic_is_deleted_though_a_transaction_there_cannot_be_completed(driver):
    pair = driver.begin("hit")
    driver.node.find_log("t", 0).take_offline("for this test")
    assert driver.end("hit", pair).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    state_log(driver, "hit").take_offline("for this test")

    driver.node.delete_topic(driver.node.topics.get("t"), driver.now)

    assert driver.node.topics.get("t") is None
    assert driver.end("hit", pair).error_code == WAITS


def test_a_partition_may_join_a_transaction_only_where_that_can_be_written(driver):
    pair = driver.begin("hit")
    driver.create_topic("u")
    state_log(driver, "hit").take_offline("for this test")

    assert produce(driver, "hit", pair, 12, topic="u") == ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.node.find_log("u", 0).end == 0
