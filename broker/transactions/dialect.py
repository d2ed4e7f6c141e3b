"""Which error code a client of a given version understands (protocol versions as dialects).

The coordinator speaks one language. Older clients know fewer codes, and the partition and group sides
translate the coordinator's answer before a producer sees it.
"""

from collections.abc import Mapping
from typing import Final

from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode

# KIP-588: from this version on a client knows PRODUCER_FENCED.
_KNOWS_FENCED: Final[Mapping[int, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
_PRODUCE_ABORTABLE: Final = 11  # KIP-890: knows TRANSACTION_ABORTABLE
_PRODUCE_IMPLICIT: Final = 12  # KIP-890: adds its partitions itself, knows CONCURRENT_TRANSACTIONS
_OFFSETS_ABORTABLE: Final = 4

_PRODUCE: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
}
_TXN_OFFSET_COMMIT: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}


def is_transaction_v2(api_key: int, version: int) -> bool:
    """Whether a request is of a version that means transaction version 2 (KIP-890)."""
    match api_key:
        case ApiKey.END_TXN | ApiKey.TXN_OFFSET_COMMIT:
            return version >= 5
        case ApiKey.PRODUCE:
            return version >= _PRODUCE_IMPLICIT
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return version >= 4
    return False


def dialect(error: ErrorCode, api_key: int, version: int) -> ErrorCode:
    """The coordinator's `error` as a client that sent `api_key` in `version` must read it."""
    if error is ErrorCode.NONE:
        return error
    if api_key == ApiKey.PRODUCE:
        return _for_produce(error, version)
    if api_key == ApiKey.TXN_OFFSET_COMMIT:
        return _for_offsets(error, version)
    if error is ErrorCode.PRODUCER_FENCED and version < _KNOWS_FENCED.get(api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _for_produce(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _PRODUCE_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _PRODUCE_IMPLICIT:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return _PRODUCE.get(error, error)


def _for_offsets(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _OFFSETS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    code = _TXN_OFFSET_COMMIT.get(error, error)
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < 2:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
