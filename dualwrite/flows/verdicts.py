"""What an error code means for the client, per API.

The tables follow what the Java client does with each code, since that is what brokers count on:
which codes end the producer, which end only the transaction, and which are tried again.
"""

from enum import Enum, auto

from dualwrite.errors import ConfigurationError, KafkaError
from dualwrite.failures import AbortableError, ClientError, FatalError, ProducerFenced
from dualwrite.failures import UnsupportedByBroker as Unsupported
from dualwrite.wire.error_codes import ErrorCode as E


class Verdict(Enum):
    """What to do next."""

    DONE = auto()
    RETRY = auto()
    """Ask the same node again, a little later."""
    MOVED = auto()
    """The coordinator or leader is elsewhere: look it up, then ask again."""
    ABORT = auto()
    """The transaction must be aborted; the producer lives on."""
    FENCED = auto()
    FATAL = auto()
    REFUSED = auto()
    """A right or a setting is missing; nothing happened."""


CodeTable = dict[int, Verdict]

_COORDINATOR: CodeTable = {
    E.NONE: Verdict.DONE,
    E.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    E.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Verdict.MOVED,
    E.NOT_COORDINATOR: Verdict.MOVED,
    E.INVALID_PRODUCER_EPOCH: Verdict.FENCED,
    E.PRODUCER_FENCED: Verdict.FENCED,
}

FIND_COORDINATOR: CodeTable = {
    E.NONE: Verdict.DONE,
    E.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Verdict.RETRY,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
    E.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
}

INIT_PRODUCER_ID: CodeTable = {
    **_COORDINATOR,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.REFUSED,
    E.CLUSTER_AUTHORIZATION_FAILED: Verdict.REFUSED,
    E.INVALID_TRANSACTION_TIMEOUT: Verdict.REFUSED,
    E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

ADD_PARTITIONS: CodeTable = {
    **_COORDINATOR,
    E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
    E.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
    E.OPERATION_NOT_ATTEMPTED: Verdict.ABORT,
    E.UNKNOWN_PRODUCER_ID: Verdict.ABORT,
    E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

ADD_OFFSETS: CodeTable = {
    **_COORDINATOR,
    E.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
    E.UNKNOWN_PRODUCER_ID: Verdict.ABORT,
    E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

TXN_OFFSET_COMMIT: CodeTable = {
    **_COORDINATOR,
    E.UNKNOWN_TOPIC_OR_PARTITION: Verdict.RETRY,
    E.UNKNOWN_TOPIC_ID: Verdict.RETRY,
    E.REQUEST_TIMED_OUT: Verdict.MOVED,
    E.GROUP_AUTHORIZATION_FAILED: Verdict.ABORT,
    E.TOPIC_AUTHORIZATION_FAILED: Verdict.ABORT,
    E.INVALID_GROUP_ID: Verdict.ABORT,
    E.OFFSET_METADATA_TOO_LARGE: Verdict.ABORT,
    E.FENCED_INSTANCE_ID: Verdict.ABORT,
    E.UNKNOWN_MEMBER_ID: Verdict.ABORT,
    E.ILLEGAL_GENERATION: Verdict.ABORT,
    E.GROUP_ID_NOT_FOUND: Verdict.ABORT,
    E.STALE_MEMBER_EPOCH: Verdict.ABORT,
    E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

COMMIT: CodeTable = {
    **_COORDINATOR,
    E.UNKNOWN_PRODUCER_ID: Verdict.ABORT,
    E.TRANSACTION_ABORTABLE: Verdict.ABORT,
}

# KAFKA-19250: an abort that is answered "abort it" would go on for ever, so it is fatal here.
ABORT: CodeTable = dict(_COORDINATOR)

# Administration asks coordinators too, but has no transaction of its own to lose.
ADMINISTRATION: CodeTable = {
    E.NONE: Verdict.DONE,
    E.COORDINATOR_LOAD_IN_PROGRESS: Verdict.RETRY,
    E.CONCURRENT_TRANSACTIONS: Verdict.RETRY,
    E.COORDINATOR_NOT_AVAILABLE: Verdict.MOVED,
    E.NOT_COORDINATOR: Verdict.MOVED,
    E.NOT_LEADER_OR_FOLLOWER: Verdict.MOVED,
}

# Produce: what is retried until delivery.timeout.ms, and what ends the producer. The rest ends the
# transaction. 47 is here no proof of a newer producer: a transaction that timed out answers it too.
PRODUCE_RETRIED = frozenset(
    {
        E.CORRUPT_MESSAGE,
        E.REQUEST_TIMED_OUT,
        E.NETWORK_EXCEPTION,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.CONCURRENT_TRANSACTIONS,
    }
)
PRODUCE_MOVED = frozenset(
    {
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.LEADER_NOT_AVAILABLE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.KAFKA_STORAGE_ERROR,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.UNKNOWN_TOPIC_ID,
    }
)
PRODUCE_FATAL = frozenset(
    {
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_VERSION,
        E.INVALID_PRODUCER_ID_MAPPING,
    }
)

# A topic which is being created, or whose partitions are without leader for the moment.
METADATA_RETRIED = frozenset(
    {E.UNKNOWN_TOPIC_OR_PARTITION, E.LEADER_NOT_AVAILABLE, E.UNKNOWN_TOPIC_ID}
)


def verdict(table: CodeTable, code: int) -> Verdict:
    """An unknown code is fatal: going on could turn it into lost or doubled records."""
    return table.get(code, Verdict.FATAL)


def produce_verdict(code: int) -> Verdict:
    """What the answer to a batch means; sequences are the sender's business."""
    if code in (E.NONE, E.DUPLICATE_SEQUENCE_NUMBER):
        return Verdict.DONE
    if code in PRODUCE_RETRIED:
        return Verdict.RETRY
    if code in PRODUCE_MOVED:
        return Verdict.MOVED
    if code == E.PRODUCER_FENCED:
        return Verdict.FENCED
    return Verdict.FATAL if code in PRODUCE_FATAL else Verdict.ABORT


def failure(judgement: Verdict, code: int, context: str) -> Exception:
    """The exception for a verdict that is neither success nor a retry."""
    if judgement is Verdict.FENCED:
        return ProducerFenced(code, context)
    if code == E.UNSUPPORTED_VERSION:
        return Unsupported(f"{context}: {E.name_of(code)} ({code})")
    if judgement is Verdict.REFUSED:
        return ConfigurationError(f"{context}: {E.name_of(code)} ({code})")
    if judgement is Verdict.ABORT:
        return AbortableError(code, context)
    return FatalError(code, context)


def two_phase_failure(judgement: Verdict, code: int, context: str) -> Exception:
    """The same for an InitProducerId with two-phase commit, where one code has two usual reasons."""
    if code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        context += (
            " with two-phase commit, which needs transaction.two.phase.commit.enable at the broker"
            " and the rights Write and TwoPhaseCommit on the id"
        )
    return failure(judgement, code, context)


def plain_failure(code: int, context: str) -> KafkaError:
    """The exception for a refusal that changes nothing in the client."""
    return ClientError(code, context)
