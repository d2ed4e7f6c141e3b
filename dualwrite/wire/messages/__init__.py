"""Every Kafka message that dualwrite speaks, one module per API, imported when first asked for."""

import re
from functools import cache
from importlib import import_module
from typing import Any

from dualwrite.wire.message import NO_VERSION

# By API key: the name and the first flexible version. The latter is repeated here so that a request
# header can be read without importing the module; a test holds both to the message classes.
APIS: dict[int, tuple[str, int]] = {
    0: ("Produce", 9),
    1: ("Fetch", 12),
    2: ("ListOffsets", 6),
    3: ("Metadata", 9),
    8: ("OffsetCommit", 8),
    9: ("OffsetFetch", 6),
    10: ("FindCoordinator", 3),
    11: ("JoinGroup", 6),
    12: ("Heartbeat", 4),
    13: ("LeaveGroup", 4),
    14: ("SyncGroup", 4),
    15: ("DescribeGroups", 5),
    16: ("ListGroups", 3),
    17: ("SaslHandshake", NO_VERSION),
    18: ("ApiVersions", 3),
    19: ("CreateTopics", 5),
    20: ("DeleteTopics", 4),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 2),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 3),
    25: ("AddOffsetsToTxn", 3),
    26: ("EndTxn", 3),
    27: ("WriteTxnMarkers", 1),
    28: ("TxnOffsetCommit", 3),
    29: ("DescribeAcls", 2),
    30: ("CreateAcls", 2),
    31: ("DeleteAcls", 2),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    35: ("DescribeLogDirs", 2),
    36: ("SaslAuthenticate", 2),
    37: ("CreatePartitions", 2),
    42: ("DeleteGroups", 2),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 0),
    46: ("ListPartitionReassignments", 0),
    47: ("OffsetDelete", NO_VERSION),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    50: ("DescribeUserScramCredentials", 0),
    51: ("AlterUserScramCredentials", 0),
    55: ("DescribeQuorum", 0),
    57: ("UpdateFeatures", 0),
    60: ("DescribeCluster", 0),
    61: ("DescribeProducers", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 0),
    68: ("ConsumerGroupHeartbeat", 0),
    69: ("ConsumerGroupDescribe", 0),
    74: ("ListConfigResources", 0),
    75: ("DescribeTopicPartitions", 0),
}


@cache
def request_class(api_key: int) -> type[Any]:
    """The class of an API's requests; KeyError for a key that dualwrite doesn't know."""
    return _class(api_key, "Request")


@cache
def response_class(api_key: int) -> type[Any]:
    """The class of an API's responses; KeyError for a key that dualwrite doesn't know."""
    return _class(api_key, "Response")


def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of an API has tagged fields, in the header too (KIP-482)."""
    api = APIS.get(api_key)
    return api is not None and version >= api[1]


def _class(api_key: int, suffix: str) -> type[Any]:
    name = APIS[api_key][0]
    module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    found: type[Any] = getattr(import_module(f"{__name__}.{module}"), name + suffix)
    return found
