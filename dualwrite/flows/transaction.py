"""`TransactionFlows`: every call of a transactional producer as a flow.

One object is one producer without IO: state, pair, sender and what it knows of the cluster. A
facade runs one flow at a time, so nothing here needs a lock; that is also what makes prepare safe
against records that other threads would add between the flush and the change of state.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from dualwrite.config import ClientConfig
from dualwrite.errors import ConfigurationError, HeuristicAbort, InvalidTxnState
from dualwrite.failures import AbortableError, FatalError, UnsupportedByBroker
from dualwrite.flows import verdicts
from dualwrite.flows.batching import PartitionQueue
from dualwrite.flows.cluster import (
    GROUP,
    TOPIC_PROPAGATION_MS,
    TRANSACTION,
    Cluster,
    ConnectionLost,
)
from dualwrite.flows.collecting import Choose
from dualwrite.flows.sending import Sender
from dualwrite.flows.states import State, StateMachine
from dualwrite.flows.steps import AT_ONCE, Flow
from dualwrite.group_metadata import GroupMetadata
from dualwrite.offsets import ConsumedOffset
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

Completion = Literal["committed", "aborted", "none"]

TWO_PHASE_INIT = 6
"""InitProducerId from this version on knows two-phase commit (KIP-939)."""

_EXPECTED_PAIR_INIT = 3
_END_V2 = 5
_OFFSETS_V2 = 5
_ADD_PARTITIONS_MAX = 3


class TimeoutRefused(ConfigurationError):
    """`transaction.timeout.ms` is above the broker's `transaction.max.timeout.ms`."""


class TransactionFlows:
    """A transactional producer without IO."""

    def __init__(self, config: ClientConfig, choose: Choose) -> None:
        assert config.transactional_id is not None
        self.config = config
        self.transactional_id = config.transactional_id
        self.states = StateMachine()
        self.prepared = PreparedTxnState.NONE
        self.version = 0
        self.cluster = Cluster(
            config.bootstrap,
            timeout_ms=config.socket_timeout_ms,
            backoff_ms=config.retry_backoff_ms,
            backoff_ms_max=config.retry_backoff_ms_max,
            auto_create_topics=config.allow_auto_create_topics,
        )
        self.sender = Sender(self.cluster, config, choose, self._sender_failed)
        self._is_recovered = False
        self._must_renew = False
        self._last_finished: tuple[PreparedTxnState, str | None, str | None] | None = None

    @property
    def pair(self) -> PreparedTxnState:
        return self.sender.pair

    def _sender_failed(self, error: Exception, fatal: bool) -> None:
        self.states.fail(error, fatal=fatal)

    def interrupted(self) -> None:
        """An interrupt struck somewhere in a call: what was under way cannot be trusted.

        An open transaction must be aborted. An end that was asked for has no such trouble: it can
        be asked for again.
        """
        self.sender.recall_in_flight()
        error = AbortableError(ErrorCode.TRANSACTION_ABORTABLE, "a call was interrupted")
        if self.states.state is State.IN_TRANSACTION:
            self.states.fail(error, fatal=False)

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Errors of the broker move the state; timeouts and misuse leave it where it is."""
        try:
            yield
        except AbortableError as error:
            self.states.fail(error, fatal=False)
            raise
        except FatalError as error:
            self.states.fail(error, fatal=True)
            raise

    # init

    def init(self, keep_prepared: bool) -> Flow[None]:
        """Take over the transactional id (InitProducerId)."""
        self.states.require("init_transactions")
        yield from self.cluster.any_link()
        wants_two_phase = keep_prepared or self.config.two_phase_commit
        with self._failing():
            response = yield from self._init_producer_id(keep_prepared, PreparedTxnState.NONE)
        # The coordinator's own connection may have shown newer features than the first broker.
        self._set_version()
        if wants_two_phase and self.version < 2:
            raise _no_version_2("two-phase commit")
        ongoing = PreparedTxnState(
            response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
        )
        last = PreparedTxnState(response.last_producer_id, response.last_producer_epoch)
        self._last_finished = (last, response.last_outcome, response.last_cause)
        if keep_prepared and ongoing.has_transaction:
            self.prepared = ongoing
            self._is_recovered = True
            self.states.move(State.PREPARED)
        else:
            self.states.move(State.READY)

    def _init_producer_id(
        self, keep_prepared: bool, expected: PreparedTxnState
    ) -> Flow[InitProducerIdResponse]:
        two_phase = self.config.two_phase_commit
        link = yield from self._coordinator_link()
        if (two_phase or keep_prepared) and self.cluster.transaction_version < 2:
            raise _no_version_2("two-phase commit")
        at_least = TWO_PHASE_INIT if two_phase or keep_prepared else 0
        if expected.has_transaction:
            at_least = max(at_least, _EXPECTED_PAIR_INIT)
        self.cluster.version(link, ApiKey.INIT_PRODUCER_ID, TWO_PHASE_INIT, at_least)

        def make(version: int) -> InitProducerIdRequest:
            return InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self.config.transaction_timeout_ms,
                producer_id=expected.producer_id,
                producer_epoch=expected.epoch,
                enable_2pc=two_phase,
                keep_prepared_txn=keep_prepared,
            )

        response: InitProducerIdResponse = yield from self.cluster.ask_coordinator(
            TRANSACTION,
            self.transactional_id,
            ApiKey.INIT_PRODUCER_ID,
            make,
            verdicts.INIT_PRODUCER_ID,
            limit=TWO_PHASE_INIT,
            at_least=at_least,
            context=f"InitProducerId of {self.transactional_id!r}",
            fail=verdicts.two_phase_failure if two_phase else _init_failure,
        )
        if response.producer_id < 0 or response.producer_epoch < 0:
            code = int(ErrorCode.UNKNOWN_SERVER_ERROR)
            raise FatalError(code, "InitProducerId was answered without a producer id")
        self.sender.start_epoch(response.producer_id, response.producer_epoch)
        return response

    def _coordinator_link(self) -> Flow[int]:
        """A connection to the coordinator, which also shows the newest feature levels."""
        while True:
            try:
                return (yield from self.cluster.coordinator(TRANSACTION, self.transactional_id))
            except ConnectionLost:
                self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)

    def _set_version(self) -> None:
        self.version = self.cluster.transaction_version
        self.sender.is_version_2 = self.version >= 2

    def bump(self) -> Flow[None]:
        """Take a new epoch between two transactions (KIP-360)."""
        self.states.require("bump_epoch")
        with self._failing():
            yield from self._init_producer_id(False, self.pair)

    # The transaction

    def begin(self) -> None:
        self.states.require("begin_transaction")
        self._last_finished = None
        self._is_recovered = False
        self.sender.end_transaction()
        self.states.move(State.IN_TRANSACTION)

    def know_topic(self, topic: str) -> Flow[None]:
        """Wait until the partitions of a topic are known."""
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a text, not {type(topic).__name__}")
        yield from self.cluster.know_topic(topic, TOPIC_PROPAGATION_MS)

    def pump(self, wait_until_ms: float = 0) -> Flow[None]:
        """Send what is due and take in what has been answered, waiting at most until then.

        The wait ends with the first news for the caller: a delivery, or room in a full queue.
        """
        was_full = self.sender.is_full
        while True:
            yield from self._maintain()
            actions = self.sender.work(self.cluster.now_ms)
            until_ms = wait_until_ms
            if until_ms > self.cluster.now_ms:
                until_ms = min(until_ms, self.sender.wake_ms(self.cluster.now_ms))
            yield from self.cluster.wait(actions, until_ms)
            has_room = was_full and not self.sender.is_full
            if has_room or self.sender.deliveries or not self.sender.outstanding:
                return
            if self.cluster.now_ms >= wait_until_ms:
                return

    def send_full(self) -> Flow[None]:
        """Send full batches; if the queue is full, wait until it takes records again."""
        yield from self.pump()
        while self.sender.is_full and self.states.state is State.IN_TRANSACTION:
            yield from self._advance()

    def drain(self) -> Flow[None]:
        """Send everything and wait for all answers."""
        self.sender.is_flushing = True
        try:
            while self.sender.outstanding:
                yield from self._advance()
        finally:
            self.sender.is_flushing = False

    def _advance(self) -> Flow[None]:
        yield from self._maintain()
        actions = self.sender.work(self.cluster.now_ms)
        if self.sender.outstanding:
            yield from self.cluster.wait(actions, self.sender.wake_ms(self.cluster.now_ms))

    def _maintain(self) -> Flow[None]:
        """What must be known before batches can go out: leaders, and before KIP-890 the coordinator
        must know the partitions."""
        cluster = self.cluster
        age_ms = cluster.now_ms - cluster.refreshed_ms
        if (cluster.is_stale and age_ms >= self.config.retry_backoff_ms) or (
            age_ms >= self.config.metadata_age_ms_max
        ):
            topics = self.sender.topics() or set(cluster.topics)
            if topics:
                # Batches must be able to expire although nobody answers.
                until_ms = cluster.now_ms + self.config.retry_backoff_ms_max
                yield from cluster.attempt(cluster.refresh(topics), until_ms)
        if self.version < 2 and self.states.state is State.IN_TRANSACTION:
            new = self.sender.unadded()
            if new:
                yield from self._add_partitions(new)

    def _drain_cleanly(self) -> Flow[None]:
        yield from self.drain()
        if self.states.error is not None:
            raise self.states.error.with_traceback(None)

    def flush_transaction(self) -> Flow[PreparedTxnState]:
        self.states.require("flush_transaction")
        yield from self._drain_cleanly()
        return self.pair if self._is_started else PreparedTxnState.NONE

    def start_prepare(self) -> Flow[PreparedTxnState]:
        """Send everything, wait for no answer; gives the pair that `prepare` will give.

        A pair does not change inside a transaction, so it can be written down while the records
        are under way.
        """
        self.states.require("prepare_transaction")
        self.sender.is_flushing = True
        try:
            yield from self._maintain()
            actions = self.sender.work(self.cluster.now_ms)
        finally:
            self.sender.is_flushing = False
        if actions:
            yield from self.cluster.wait(actions, AT_ONCE)
        is_empty = not (self._is_started or self.sender.outstanding)
        return PreparedTxnState.NONE if is_empty else self.pair

    def prepare(self) -> Flow[PreparedTxnState]:
        """Everything is acknowledged, hence durable; from now on only the outcome is open.

        There is no request for it (KIP-939): the broker learns of the transaction's end from
        EndTxn alone, so prepared is a state of the client.
        """
        self.states.require("prepare_transaction")
        if not self.config.two_phase_commit:
            raise InvalidTxnState("prepare_transaction needs 'transaction.two.phase.commit.enable'")
        if self.version < 2:
            raise _no_version_2("prepare_transaction")
        yield from self._drain_cleanly()
        if not self._is_started:
            # An empty transaction never moves the epoch, so its pair would also be the next
            # one's, and recovery could take the next one for this.
            self.states.move(State.READY)
            return PreparedTxnState.NONE
        self.prepared = self.pair
        self.states.move(State.PREPARED)
        return self.prepared

    def complete(self, state: PreparedTxnState) -> Flow[Completion]:
        self.states.require("complete_transaction")
        if self.states.state is State.READY:
            self._raise_heuristic(state)
            return "none"
        if not self.prepared.has_transaction:
            raise InvalidTxnState("complete_transaction is not allowed: nothing is prepared")
        if state == self.prepared:
            yield from self.commit()
            return "committed"
        yield from self.abort()
        return "aborted"

    def _raise_heuristic(self, state: PreparedTxnState) -> None:
        """An abort by force or timeout must not pass for "it was completed long ago"."""
        if self._last_finished is None or not state.has_transaction:
            return
        pair, outcome, cause = self._last_finished
        if pair == state and outcome == "abort" and cause not in (None, "client"):
            raise HeuristicAbort(
                f"transaction {state} of {self.transactional_id!r} was aborted, cause: {cause}"
            )

    # The end

    @property
    def _is_started(self) -> bool:
        """A broker may know of this transaction; one recovered by keep-prepared surely does."""
        return self.sender.has_sent or self._is_recovered

    def commit(self) -> Flow[None]:
        self.states.require("commit_transaction")
        if self.states.state is State.IN_TRANSACTION:
            yield from self._drain_cleanly()
        yield from self._end(State.COMMITTING)

    def abort(self) -> Flow[None]:
        self.states.require("abort_transaction")
        if self.states.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            dropped = verdicts.plain_failure(
                ErrorCode.TRANSACTION_ABORTABLE, "dropped: the transaction was aborted"
            )
            self.sender.purge(dropped)
            # A batch that arrived after the end marker would belong to no transaction.
            while self.sender.has_in_flight:
                yield from self.cluster.wait([])
                self.sender.purge(dropped)
        was_failed = self.states.state is State.ABORTABLE_ERROR
        yield from self._end(State.ABORTING, renew=was_failed)

    def overrule(self) -> Flow[None]:
        """Abort by force what an earlier owner has left open and keep-prepared has taken over.

        By InitProducerId instead of EndTxn, which the broker would take for the client's own end. It
        carries the pair that keep-prepared gave, so whoever has come since fences it.
        """
        self.states.require("abort_transaction")
        if not self._is_recovered:
            raise InvalidTxnState("only what an earlier owner has left open can be overruled")
        if self.states.state is not State.ABORTING:
            self.states.move(State.ABORTING)
        with self._failing():
            yield from self._init_producer_id(False, self.pair)
        self._ended()

    def _end(self, target: State, renew: bool = False) -> Flow[None]:
        if self.states.state is not target:
            self.states.move(target)
            self._must_renew = renew
        if self._is_started:
            with self._failing():
                yield from self._end_txn(target is State.COMMITTING)
        self._ended()

    def _end_txn(self, commit: bool) -> Flow[None]:
        pair = self.pair
        request = EndTxnRequest(self.transactional_id, pair.producer_id, pair.epoch, commit)
        is_version_2 = self.version >= 2
        try:
            response: EndTxnResponse = yield from self.cluster.ask_coordinator(
                TRANSACTION,
                self.transactional_id,
                ApiKey.END_TXN,
                lambda version: request,
                verdicts.COMMIT if commit else verdicts.ABORT,
                limit=_END_V2 if is_version_2 else _END_V2 - 1,
                at_least=_END_V2 if is_version_2 else 0,
                context=f"{'commit' if commit else 'abort'} of {self.transactional_id!r} {pair}",
            )
        except FatalError as error:
            # Before KIP-890 an abort of a transaction that never reached the coordinator is
            # answered 48; taking a new epoch then gives the same certainty.
            if commit or is_version_2 or error.code != ErrorCode.INVALID_TXN_STATE:
                raise
            self._must_renew = True
        else:
            if is_version_2 and response.producer_id >= 0:
                self.sender.start_epoch(response.producer_id, response.producer_epoch)
                return
            self._must_renew |= is_version_2  # without the next pair we have none
        if self._must_renew or self.cluster.transaction_version > self.version:
            # Sequences of batches that failed are lost, and a partition must not count as added
            # when the cluster has moved to version 2 (KAFKA-18227).
            yield from self._init_producer_id(False, self.pair)

    def _ended(self) -> None:
        self.prepared = PreparedTxnState.NONE
        self._is_recovered = False
        self._must_renew = False
        self.sender.end_transaction()
        self._set_version()
        self.states.move(State.READY)

    # Taking part

    def _add_partitions(self, queues: Sequence[PartitionQueue]) -> Flow[None]:
        """AddPartitionsToTxn, which every partition needs before its first batch until KIP-890."""
        topics: dict[str, list[int]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, []).append(queue.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.sender.producer_id,
            v3_and_below_producer_epoch=self.sender.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name, partitions) for name, partitions in topics.items()
            ],
        )
        self.sender.has_sent = True
        with self._failing():
            yield from self.cluster.ask_coordinator(
                TRANSACTION,
                self.transactional_id,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                lambda version: request,
                verdicts.ADD_PARTITIONS,
                limit=_ADD_PARTITIONS_MAX,
                code_of=_add_partitions_code,
                context=f"adding partitions to the transaction of {self.transactional_id!r}",
            )
        for queue in queues:
            queue.is_added = True

    def send_offsets(
        self, offsets: Mapping[str, Sequence[ConsumedOffset]], group: GroupMetadata
    ) -> Flow[None]:
        """Put a group's offsets into the transaction (KIP-98, KIP-447)."""
        self.states.require("send_offsets_to_transaction")
        if not offsets:
            return
        is_version_2 = self.version >= 2
        self.sender.has_sent = True
        with self._failing():
            if not is_version_2:
                yield from self._add_offsets(group.group_id)
            yield from self.cluster.ask_coordinator(
                GROUP,
                group.group_id,
                ApiKey.TXN_OFFSET_COMMIT,
                lambda version: self._offset_commit(offsets, group, version),
                verdicts.TXN_OFFSET_COMMIT,
                limit=_OFFSETS_V2 if is_version_2 else _OFFSETS_V2 - 1,
                at_least=_OFFSETS_V2 if is_version_2 else 0,
                code_of=_offset_commit_code,
                context=f"offsets of group {group.group_id!r}",
            )

    def _add_offsets(self, group_id: str) -> Flow[None]:
        request = AddOffsetsToTxnRequest(
            self.transactional_id, self.sender.producer_id, self.sender.epoch, group_id
        )
        yield from self.cluster.ask_coordinator(
            TRANSACTION,
            self.transactional_id,
            ApiKey.ADD_OFFSETS_TO_TXN,
            lambda version: request,
            verdicts.ADD_OFFSETS,
            limit=4,
            context=f"adding group {group_id!r} to the transaction of {self.transactional_id!r}",
        )

    def _offset_commit(
        self, offsets: Mapping[str, Sequence[ConsumedOffset]], group: GroupMetadata, version: int
    ) -> TxnOffsetCommitRequest:
        topics = [
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        one.partition, one.offset, one.leader_epoch, one.metadata
                    )
                    for one in consumed
                ],
            )
            for topic, consumed in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group.group_id,
            producer_id=self.sender.producer_id,
            producer_epoch=self.sender.epoch,
            topics=topics,
        )
        if version >= 3:
            request.generation_id_or_member_epoch = group.generation_id
            request.member_id = group.member_id
            request.group_instance_id = group.group_instance_id
        return request


def _no_version_2(what: str) -> ConfigurationError:
    return UnsupportedByBroker(
        f"{what} needs the finalized feature transaction.version 2 (KIP-890): without it two"
        " transactions can have the same producer id and epoch"
    )


def _add_partitions_code(response: AddPartitionsToTxnResponse) -> int:
    return _worst(
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    )


def _offset_commit_code(response: TxnOffsetCommitResponse) -> int:
    return _worst(
        partition.error_code for topic in response.topics for partition in topic.partitions
    )


def _worst(codes: Generator[int]) -> int:
    """The code that says most: 55 only means that another partition has failed."""
    failed = sorted(
        (code for code in codes if code),
        key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED,
    )
    return failed[0] if failed else 0


def _init_failure(judgement: verdicts.Verdict, code: int, context: str) -> Exception:
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return TimeoutRefused(f"{context}: {ErrorCode.name_of(code)} ({code})")
    return verdicts.failure(judgement, code, context)
