"""Requests of operators: settings, partitions, records, and what one broker has none of."""

import pytest

from dualwrite.broker.configs import DYNAMIC
from dualwrite.broker.settings import SettingError, Settings
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_client_quotas import AlterClientQuotasRequest
from dualwrite.wire.messages.alter_client_quotas import EntryData as QuotaEntry
from dualwrite.wire.messages.alter_configs import AlterableConfig as WholeConfig
from dualwrite.wire.messages.alter_configs import AlterConfigsRequest
from dualwrite.wire.messages.alter_configs import AlterConfigsResource as WholeResource
from dualwrite.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from dualwrite.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from dualwrite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from dualwrite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from dualwrite.wire.messages.describe_cluster import DescribeClusterRequest
from dualwrite.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from dualwrite.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from dualwrite.wire.messages.describe_quorum import DescribeQuorumRequest
from dualwrite.wire.messages.describe_quorum import PartitionData as QuorumPartition
from dualwrite.wire.messages.describe_quorum import TopicData as QuorumTopic
from dualwrite.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from dualwrite.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from dualwrite.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from dualwrite.wire.messages.list_config_resources import ListConfigResourcesRequest
from dualwrite.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from dualwrite.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from dualwrite.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.broker.node_driver import NodeDriver
from tests.broker.raw_client import fetch_request, values_of

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def driver():
    running = NodeDriver()
    running.create_topic()
    return running


def change(driver, key, value, operation=SET, kind=TOPIC, name="t", dry=False):
    config = AlterableConfig(name=key, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    return driver.call(request, 1).responses[0].error_code


def described(driver, key, kind=TOPIC, name="t"):
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=[key]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = driver.call(request, 4).results
    assert result.error_code == 0, result
    (config,) = result.configs
    return config


def test_a_topics_settings_are_changed_kept_and_reset(driver):
    assert described(driver, "retention.ms").config_source == 5
    assert change(driver, "retention.ms", "1234", dry=True) == 0
    assert described(driver, "retention.ms").value == "604800000"
    assert change(driver, "retention.ms", "1234") == 0
    assert change(driver, "cleanup.policy", "compact", APPEND) == 0
    assert change(driver, "cleanup.policy", "delete", SUBTRACT) == 0
    driver.crash()

    found = described(driver, "retention.ms")
    assert (found.value, found.config_source, found.config_type) == ("1234", 1, 5)
    assert [s.source for s in found.synonyms] == [1, 5]
    assert described(driver, "cleanup.policy").value == "compact"
    assert driver.node.find_log("t", 0).settings.compact
    assert driver.node.find_log("t", 0).settings.retention_ms == 1234
    assert change(driver, "retention.ms", None, DELETE) == 0
    assert described(driver, "retention.ms").value == "604800000"


def test_settings_that_make_no_sense_are_refused(driver):
    assert change(driver, "no.such", "1") == ErrorCode.INVALID_CONFIG
    assert change(driver, "retention.ms", "soon") == ErrorCode.INVALID_CONFIG
    assert change(driver, "retention.ms", None) == ErrorCode.INVALID_REQUEST
    assert change(driver, "cleanup.policy", None, APPEND) == ErrorCode.INVALID_REQUEST
    assert change(driver, "retention.ms", "1", APPEND) == ErrorCode.INVALID_CONFIG
    assert change(driver, "cleanup.policy", "shred", APPEND) == ErrorCode.INVALID_CONFIG
    assert change(driver, "cleanup.policy", "delete", SUBTRACT) == ErrorCode.INVALID_CONFIG
    assert change(driver, "x", "1", name="nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert change(driver, "x", "1", kind=9) == ErrorCode.INVALID_REQUEST
    assert change(driver, "node.id", "5", kind=BROKER, name="1") == ErrorCode.INVALID_REQUEST
    assert change(driver, "num.partitions", "5", kind=BROKER, name="7") == 42


@pytest.mark.parametrize("value", ["much", "", "nan", "inf", "-0.1", "1.5"])
def test_a_ratio_is_a_number_between_0_and_1(driver, value):
    created = CreatableTopic(
        name="u",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="min.cleanable.dirty.ratio", value=value)],
    )

    assert change(driver, "min.cleanable.dirty.ratio", value) == ErrorCode.INVALID_CONFIG
    ratio = "log.cleaner.min.cleanable.ratio"
    assert change(driver, ratio, value, kind=BROKER, name="1") == ErrorCode.INVALID_CONFIG
    (result,) = driver.call(CreateTopicsRequest(topics=[created]), 7).topics
    assert result.error_code == ErrorCode.INVALID_CONFIG
    driver.crash()
    assert described(driver, "min.cleanable.dirty.ratio").value == "0.5"
    assert described(driver, "min.cleanable.dirty.ratio").config_type == 6


@pytest.mark.parametrize("key", sorted(DYNAMIC))
def test_a_setting_of_the_broker_is_never_null(driver, key):
    whole = WholeResource(
        resource_type=BROKER, resource_name="1", configs=[WholeConfig(name=key, value=None)]
    )

    assert change(driver, key, None, kind=BROKER, name="1") == ErrorCode.INVALID_REQUEST
    (result,) = driver.call(AlterConfigsRequest(resources=[whole]), 2).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    driver.crash()
    assert driver.produce(b"x").error_code == 0


def test_the_brokers_settings_change_what_topics_inherit(driver):
    assert change(driver, "log.retention.ms", "777", kind=BROKER, name="1") == 0
    driver.crash()

    assert described(driver, "retention.ms").value == "777"
    assert described(driver, "retention.ms").config_source == 2
    assert driver.node.find_log("t", 0).settings.retention_ms == 777
    assert described(driver, "log.retention.ms", BROKER, "1").value == "777"
    assert described(driver, "node.id", BROKER, "1").read_only


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log_retention_hours": -1}, -1),
    ],
)
def test_the_finest_unit_of_the_retention_wins(settings, retention_ms):
    driver = NodeDriver(**settings)
    driver.create_topic()

    assert driver.node.find_log("t", 0).settings.retention_ms == retention_ms
    assert described(driver, "retention.ms").value == str(retention_ms)
    assert described(driver, "retention.ms").config_source == 4


def test_segments_roll_after_hours_too():
    assert Settings.of({"log.roll.hours": 3})["log.roll.ms"] == 10_800_000
    with pytest.raises(SettingError):
        Settings.of({"log.roll.hours": -1})


TRANSACTION_SETTINGS = {  # protocol.md 6.1; replicas are ours: there is one
    "transaction.max.timeout.ms": "900000",
    "transactional.id.expiration.ms": "604800000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
    "transaction.state.log.num.partitions": "50",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.segment.bytes": "104857600",
    "transaction.state.log.load.buffer.size": "1048576",
    "transaction.partition.verification.enable": "true",
    "add.partitions.to.txn.retry.backoff.ms": "20",
    "add.partitions.to.txn.retry.backoff.max.ms": "100",
    "producer.id.expiration.ms": "86400000",
    "producer.id.expiration.check.interval.ms": "600000",
    "offsets.topic.num.partitions": "50",
    "offset.metadata.max.bytes": "4096",
    "offsets.retention.minutes": "10080",
    "offsets.commit.timeout.ms": "5000",
}


def test_settings_of_transactions_have_kafkas_names(driver):
    shown = {key: described(driver, key, BROKER, "1").value for key in TRANSACTION_SETTINGS}

    assert shown == TRANSACTION_SETTINGS


def test_verification_can_not_be_switched_off():
    with pytest.raises(SettingError):
        Settings.of({"transaction.partition.verification.enable": "false"})


def test_a_record_waits_no_longer_for_compaction_than_it_may(driver):
    lag_ms = 3_600_000
    assert change(driver, "cleanup.policy", "compact") == 0
    assert change(driver, "max.compaction.lag.ms", str(lag_ms)) == 0
    assert change(driver, "min.cleanable.dirty.ratio", "1") == 0

    for value in (b"1", b"2", b"3"):
        driver.produce(value, keys=[b"key"])
        driver.pass_time(2 * lag_ms)

    assert values_of(driver.call(fetch_request("t"), 12).responses[0].partitions[0]) == [b"3"]


def test_secrets_are_not_shown():
    driver = NodeDriver(ssl_key_password="geheim")

    found = described(driver, "ssl.key.password", BROKER, "1")

    assert found.is_sensitive
    assert found.value is None
    assert {synonym.value for synonym in found.synonyms} == {None}


def test_alter_configs_replaces_everything(driver):
    change(driver, "retention.ms", "1234")
    configs = [WholeConfig(name="segment.bytes", value="2048")]
    resource = WholeResource(resource_type=TOPIC, resource_name="t", configs=configs)

    answer = driver.call(AlterConfigsRequest(resources=[resource]), 2)

    assert answer.responses[0].error_code == 0
    assert described(driver, "retention.ms").config_source == 5
    assert described(driver, "segment.bytes").value == "2048"


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_what_the_coordinators_know_is_only_compacted(driver, name):
    """Retention would take prepared transactions and committed offsets with it."""
    key, refused = "cleanup.policy", ErrorCode.POLICY_VIOLATION
    configs = [WholeConfig(name="segment.bytes", value="2048")]
    whole = WholeResource(resource_type=TOPIC, resource_name=name, configs=configs)

    assert change(driver, key, "delete", name=name) == refused
    assert change(driver, key, "delete", name=name, dry=True) == refused
    assert change(driver, key, "delete", APPEND, name=name) == refused
    assert change(driver, key, None, DELETE, name=name) == refused
    (replaced,) = driver.call(AlterConfigsRequest(resources=[whole]), 2).responses
    assert replaced.error_code == refused  # what is not named would go back to delete

    assert change(driver, "segment.bytes", "2048", name=name) == 0
    assert change(driver, key, "compact", name=name) == 0
    assert not driver.node.find_log(name, 0).settings.delete


def grow(driver, count, name="t"):
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)]
    )
    return driver.call(request, 3).results[0].error_code


def test_topics_grow_and_never_shrink(driver):
    assert grow(driver, 4) == 0
    driver.crash()

    assert driver.node.topics.get("t").partitions == 4
    assert driver.node.find_log("t", 3) is not None
    assert grow(driver, 4) == grow(driver, 1) == ErrorCode.INVALID_PARTITIONS
    assert grow(driver, 2**31 - 1) == ErrorCode.INVALID_PARTITIONS
    assert grow(driver, 2, "nobody") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(driver, 99, "__consumer_offsets") == ErrorCode.INVALID_TOPIC_EXCEPTION


def delete_records(driver, offset, name="t"):
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name, partitions=[partition])])
    part = driver.call(request, 2).topics[0].partitions[0]
    return part.error_code, part.low_watermark


def test_records_are_deleted_but_none_whose_outcome_is_open(driver):
    for _ in range(5):
        driver.produce(b"x")
    driver.begin("open", enable_2pc=True)
    driver.produce(b"behind")

    assert delete_records(driver, 2) == (0, 2)
    assert delete_records(driver, 6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete_records(driver, 99) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete_records(driver, -1) == (0, 5)
    assert delete_records(driver, 0, "nobody")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    driver.crash()
    assert driver.node.find_log("t", 0).log_start == 5


def test_what_one_broker_is_and_what_it_has_none_of(driver):
    cluster = driver.call(DescribeClusterRequest(), 2)
    controllers = driver.call(DescribeClusterRequest(endpoint_type=2), 2)
    dirs = driver.call(DescribeLogDirsRequest(topics=None), 4).results[0]
    quorum_topic = QuorumTopic("__cluster_metadata", [QuorumPartition(0)])
    quorum = driver.call(DescribeQuorumRequest(topics=[quorum_topic]), 2)
    election = driver.call(ElectLeadersRequest(1, [TopicPartitions("t", [0, 9])]), 2)
    moving = driver.call(ListPartitionReassignmentsRequest(), 0)
    quotas = driver.call(AlterClientQuotasRequest(entries=[QuotaEntry()]), 1)
    resources = driver.call(ListConfigResourcesRequest(), 1).config_resources

    assert [b.broker_id for b in cluster.brokers] == [1]
    assert controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert {t.name for t in dirs.topics} >= {"t", "__transaction_state"}
    assert quorum.topics[0].partitions[0].leader_id == 1
    codes = [r.error_code for r in election.replica_election_results[0].partition_result]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert (moving.error_code, moving.topics) == (0, [])
    assert quotas.entries[0].error_code == ErrorCode.INVALID_REQUEST
    assert ("t", TOPIC) in [(r.resource_name, r.resource_type) for r in resources]


def test_replicas_stay_where_they_are(driver):
    def move(replicas, index=0):
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=[partition])]
        )
        return driver.call(request, 1).responses[0].partitions[0].error_code

    assert move([1]) == 0
    assert move([2]) == move([1, 2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert move(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert move([1], index=5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [0, 1, 2])
def test_feature_levels_are_settings(driver, version):
    def update(name, level):
        key = FeatureUpdateKey(feature=name, max_version_level=level)
        answer = driver.call(UpdateFeaturesRequest(feature_updates=[key]), version)
        return answer.error_code or next((r.error_code for r in answer.results), 0)

    assert update("transaction.version", 2) == 0
    assert update("transaction.version", 1) == ErrorCode.INVALID_UPDATE_VERSION
    assert update("no.such.feature", 1) == ErrorCode.INVALID_UPDATE_VERSION


def test_the_only_leader_epoch_ends_at_the_end(driver):
    driver.produce(b"x")

    def end(epoch, current=-1):
        part = OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        topics = [OffsetForLeaderTopic(topic="t", partitions=[part])]
        found = driver.call(OffsetForLeaderEpochRequest(topics=topics), 4).topics[0].partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    assert end(0) == (0, 0, 1)
    assert end(3) == (0, -1, -1)
    assert end(0, current=2)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_topics_are_described_page_by_page(driver):
    grow(driver, 5)
    driver.create_topic("u")
    pages, cursor = [], None
    while True:
        request = DescribeTopicPartitionsRequest(response_partition_limit=40, cursor=cursor)
        answer = driver.call(request, 0)
        pages.append([(t.name, len(t.partitions)) for t in answer.topics])
        cursor = answer.next_cursor
        if cursor is None:
            break

    assert pages == [
        [("__consumer_offsets", 40)],
        [("__consumer_offsets", 10), ("__transaction_state", 30)],
        [("__transaction_state", 20), ("t", 5), ("u", 1)],
    ]
