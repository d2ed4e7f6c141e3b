"""CreateTopics (19), v2-7.

Partitions and replication factor -1 mean the broker's defaults; a manual assignment must name this
broker only. v5 reports the settings in force (never null: Java's admin client fails on null), v7 the
topic id. Who may create a topic without DESCRIBE_CONFIGS on it is told TOPIC_AUTHORIZATION_FAILED in
place of settings and counts (KIP-525). Names that occur twice in a request are refused.
"""

from collections import Counter
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.settings import TOPIC_SETTINGS, text_of
from dualwrite.broker.topic_creation import Refused, checked_topic
from dualwrite.broker.topics import Topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

TOPIC_CONFIG = 1  # DescribeConfigs' source: set on the topic
STATIC_BROKER_CONFIG = 4
DEFAULT_CONFIG = 5


@handles(ApiKey.CREATE_TOPICS, versions=(2, 7), request=CreateTopicsRequest)
def create_topics(node: "Node", call: "Call[CreateTopicsRequest]") -> CreateTopicsResponse:
    named = Counter(wanted.name for wanted in call.request.topics)
    results: list[CreatableTopicResult] = []
    for wanted in call.request.topics:
        if named[wanted.name] > 1:
            if all(result.name != wanted.name for result in results):
                results.append(
                    _failed(wanted.name, ErrorCode.INVALID_REQUEST, "the topic is named twice")
                )
            continue
        results.append(_create(node, call, wanted))
    return CreateTopicsResponse(topics=results)


def _create(
    node: "Node", call: "Call[CreateTopicsRequest]", wanted: CreatableTopic
) -> CreatableTopicResult:
    name = wanted.name
    if not may_create(call, name):
        return _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized to create it")
    try:
        topic = checked_topic(
            name,
            node.new_topic_id(),
            _partitions(node, wanted),
            1 if wanted.assignments else wanted.replication_factor,
            {config.name: config.value for config in wanted.configs},
            node.topics,
            node.settings,
        )
        node.refuse_when_full()
    except Refused as refused:
        return _failed(name, refused.code, refused.reason)
    if not call.request.validate_only:
        node.create_topic(topic, call.now)
    result = CreatableTopicResult(
        name=name,
        topic_id=bytes(16) if call.request.validate_only else topic.id,
        error_message=None,
        configs=[],
    )
    if call.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name):
        result.num_partitions, result.replication_factor = topic.partitions, 1
        result.configs = _configs(node, topic)
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return result


def may_create(call: "Call[CreateTopicsRequest]", name: str) -> bool:
    """Create on the cluster, or on the topic."""
    return call.may(Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster") or call.may(
        Operation.CREATE, ResourceType.TOPIC, name
    )


def _partitions(node: "Node", wanted: CreatableTopic) -> int:
    if not wanted.assignments:
        return wanted.num_partitions
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise Refused(ErrorCode.INVALID_REQUEST, "both a number of partitions and an assignment")
    indexes = sorted(assignment.partition_index for assignment in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are not 0, 1, 2, …")
    if any(assignment.broker_ids != [node.id] for assignment in wanted.assignments):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the only broker is {node.id}")
    return len(indexes)


def _configs(node: "Node", topic: Topic) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=key,
            value=text_of(node.topics.config(topic, key)),
            config_source=config_source(node, topic, key),
        )
        for key in TOPIC_SETTINGS
    ]


def config_source(node: "Node", topic: Topic, key: str) -> int:
    """Where the value in force comes from."""
    if key in topic.configs:
        return TOPIC_CONFIG
    return STATIC_BROKER_CONFIG if node.is_set(TOPIC_SETTINGS[key].name) else DEFAULT_CONFIG


def _failed(name: str, code: ErrorCode, reason: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=code, error_message=reason, configs=[], num_partitions=-1
    )
