"""Kafka in memory: the bundled broker's own coordinator, and producers with the client's own states."""

from sqlalchemy.util import greenlet_spawn

from dualwrite.admin import BrokerFeatures, FinishedTransaction, TransactionDescription
from dualwrite.broker.clock import Now
from dualwrite.broker.transactions.coordinator import (
    Availability,
    Coordinator,
    CoordinatorSettings,
)
from dualwrite.broker.transactions.producer_ids import ProducerIds
from dualwrite.broker.transactions.state import NO_PAIR, Pair, PartitionRef, TxnState
from dualwrite.errors import KafkaError
from dualwrite.failures import (
    AbortableError,
    FatalError,
    KafkaTimeout,
    ProducerFenced,
    UnsupportedByBroker,
)
from dualwrite.flows.states import State, StateMachine
from dualwrite.kafka_access import full_matches
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.interleavings.network import exchange
from tests.interleavings.virtual import now

ORDERS = frozenset({PartitionRef("orders", 0)})
FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)


class Cluster:
    """One broker: ids, what is open under them, and what readers of committed records see."""

    def __init__(self, network, *, version, epoch_max):
        settings = CoordinatorSettings(transaction_version=version, epoch_max=epoch_max)
        self.network, self.version = network, version
        self.coordinator = Coordinator(settings, ProducerIds(7), lambda _: Availability.ONLINE)
        self.sent, self.visible = {}, []

    def init(self, id, timeout_ms, two_phase, keep, expected=NO_PAIR):
        return self._carry_out(
            id,
            self.coordinator.init_producer_id(
                id,
                timeout_ms=timeout_ms,
                enable_2pc=two_phase,
                keep_prepared=keep,
                expected=expected,
                now=self.now(),
            ),
        )

    def append(self, id, pair, records):
        self._carry_out(
            id,
            self.coordinator.add_partitions(
                id, pair, ORDERS, tv2=self.version >= 2, now=self.now()
            ),
        )
        self.sent.setdefault(id, []).extend(records)

    def end(self, id, pair, commit):
        decided = self.coordinator.end_txn(
            id, pair, commit=commit, tv2=self.version >= 2, now=self.now()
        )
        return self._carry_out(id, decided)

    def time_out(self):
        for decision in self.coordinator.abort_timed_out(self.now()):
            self._carry_out(decision.records[0].transactional_id, decision)

    def open_ids(self):
        return [each.transactional_id for each in self.coordinator.open_transactions()]

    def now(self):
        return Now(int(now() * 1000), int(now() * 1000))

    def _carry_out(self, id, decision):
        if decision.error is not ErrorCode.NONE:
            raise KafkaError(decision.error, id)
        for record in decision.records:
            self.coordinator.replay(record)
            if record.state in (TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT):
                records = self.sent.pop(id, [])
                is_commit = record.state is TxnState.COMPLETE_COMMIT
                self.network.note(f"Kafka {record.state.name} of {id}: {records}")
                self.visible += records if is_commit else []
        return decision


def _timeout():
    return KafkaTimeout("no answer")


def _state(pair):
    return PreparedTxnState(*pair)


class Access:
    """`surroundings.Kafka` for one process."""

    def __init__(self, cluster, settings):
        self.cluster, self.network, self._settings = cluster, cluster.network, settings

    def producer(self, transactional_id, *, two_phase):
        return Producer(self.cluster, transactional_id, two_phase, self._settings.resume_timeout_ms)

    def close(self):
        pass

    @exchange(_timeout)
    def cluster_id(self):
        return "cluster"

    @exchange(_timeout)
    def features(self):
        versions = {int(ApiKey.INIT_PRODUCER_ID): (0, 6)}
        return BrokerFeatures({"transaction.version": self.cluster.version}, versions)

    @exchange(_timeout)
    def describe(self, id):
        self.cluster.time_out()
        found = self.cluster.coordinator.get(id)
        if found is None:
            return None
        last = None
        if found.last_outcome:
            last = FinishedTransaction(
                _state(found.last_finished), found.last_outcome, found.last_cause
            )
        return TransactionDescription(
            transactional_id=id,
            state=found.state.wire_name,
            pair=_state(found.pair),
            timeout_ms=found.timeout_ms,
            start_time_ms=0,
            partitions=(),
            coordinator=1,
            last_finished=last,
        )

    @exchange(_timeout)
    def open_ids(self, pattern):
        self.cluster.time_out()
        return full_matches(pattern, list(self.cluster.coordinator.open_transactions()))

    @exchange(_timeout)
    def end_txn(self, id, pair, commit):
        self.cluster.end(id, Pair(pair.producer_id, pair.epoch), commit)


class Producer:
    """`TwoPhaseProducer` over the cluster."""

    def __init__(self, cluster, id, two_phase, timeout_ms):
        self.cluster, self.network, self._id = cluster, cluster.network, id
        self._two_phase, self._timeout_ms = two_phase, timeout_ms
        self._states = StateMachine()
        self._pair = NO_PAIR
        self._unsent, self._has_sent = [], False
        self.prepared_txn_state = PreparedTxnState.NONE
        self.transaction_version = cluster.version

    def init_transactions(self, keep_prepared_txn=False):
        self._states.require("init_transactions")
        decision = self._init(keep_prepared_txn, NO_PAIR)
        if decision.ongoing != NO_PAIR:
            self.prepared_txn_state = _state(decision.ongoing)
            self._has_sent = True
        self._states.move(State.PREPARED if self.prepared_txn_state else State.READY)

    def bump_epoch(self):
        self._states.require("bump_epoch")
        self._init(False, self._pair)

    @exchange(_timeout)
    def _init(self, keep, expected):
        decision = self._judged(
            self.cluster.init, self._id, self._timeout_ms, self._two_phase, keep, expected
        )
        self._pair = decision.producer
        return decision

    def begin_transaction(self):
        self._states.require("begin_transaction")
        self._states.move(State.IN_TRANSACTION)

    def produce_batch(self, topic, rows, partition=-1):
        self._states.require("produce")
        self._unsent += [bytes(row[1]).decode() for row in rows]

    def start_prepare(self):
        """Some of what is sent arrives at once, the rest is under way."""
        self._states.require("prepare_transaction")
        pair = _state(self._pair) if self._unsent or self._has_sent else PreparedTxnState.NONE
        self._send(self.network.random.randint(0, len(self._unsent)))
        return pair

    def prepare_transaction(self):
        self._states.require("prepare_transaction")
        self._send(len(self._unsent))
        if not self._has_sent:
            self._states.move(State.READY)
            return PreparedTxnState.NONE
        self.prepared_txn_state = _state(self._pair)
        self._states.move(State.PREPARED)
        return self.prepared_txn_state

    def flush_transaction(self):
        self._states.require("flush_transaction")
        self._send(len(self._unsent))
        return _state(self._pair) if self._has_sent else PreparedTxnState.NONE

    def _send(self, count):
        if not count:
            return
        self._has_sent = True
        try:
            self._append(count)
        except (KafkaTimeout, KeyboardInterrupt):
            self._states.fail(AbortableError(ErrorCode.TRANSACTION_ABORTABLE, ""), fatal=False)
            raise

    @exchange(_timeout)
    def _append(self, count):
        self._judged(self.cluster.append, self._id, self._pair, self._unsent[:count])
        del self._unsent[:count]

    def start_commit(self):
        """The request is on its way; it arrives soon, late, or never."""
        self._states.require("commit_transaction")
        if self._states.state is State.IN_TRANSACTION:
            self._send(len(self._unsent))
        self._states.move(State.COMMITTING)
        request = self._id, self._pair, True

        def arrive():
            try:
                self.cluster.end(*request)
            except KafkaError as error:
                self.network.note(f"EndTxn of {request} is refused: {error}")

        if not self.network.chance(self.network.rates.lost):
            self.network.later(self.network.delay(), arrive)

    def commit_transaction(self):
        self._states.require("commit_transaction")
        if self._states.state is State.IN_TRANSACTION:
            self._send(len(self._unsent))
        self._end(State.COMMITTING)

    def abort_transaction(self):
        self._states.require("abort_transaction")
        self._unsent.clear()
        self._end(State.ABORTING)

    def complete_transaction(self, state):
        self._states.require("complete_transaction")
        if self._states.state is State.READY:
            return "none"
        self._end(State.COMMITTING if state == self.prepared_txn_state else State.ABORTING)
        return None

    def _end(self, target):
        if self._states.state is not target:
            self._states.move(target)
        if self._has_sent:
            after = self._ended(target is State.COMMITTING).producer
            self._pair = self._pair if after == NO_PAIR else after
        self.prepared_txn_state = PreparedTxnState.NONE
        self._has_sent = False
        self._states.move(State.READY)

    @exchange(_timeout)
    def _ended(self, commit):
        return self._judged(self.cluster.end, self._id, self._pair, commit)

    def close(self, timeout=None, *, leave_open=False):
        self._states.close()

    def _judged(self, work, *args):
        """The broker's refusals as the client names them."""
        self.cluster.time_out()
        try:
            return work(*args)
        except KafkaError as error:
            code, context = error.code, str(error)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                raise UnsupportedByBroker(context) from None
            named = (ProducerFenced if code in FENCED else FatalError)(code, context)
            self._states.fail(named, fatal=True)
            raise named from None


class Awaitable:
    """An object with awaitable methods."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def method(*args, **kwargs):
            return await greenlet_spawn(found, *args, **kwargs)

        return method


class AwaitableAccess(Awaitable):
    def producer(self, transactional_id, *, two_phase):
        return Awaitable(self._inner.producer(transactional_id, two_phase=two_phase))
