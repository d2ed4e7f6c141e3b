"""The Kafka side of a dual write by KIP-939: prepare, complete, and recovery of a slot.

Recovery (in this order, whatever else happens):

1. claim: bump the fence in the store and commit that. Nobody can decide under an older fence now.
2. `init_transactions(keep_prepared_txn=True)`: nobody can end the open transaction with an older epoch.
3. read the state *again* under the own fence, and decide only from this read. A recoverer that was
   paused between 1 and 2 would otherwise act on what a newer instance has long overwritten.
4. complete. A newer claimer's init fences this step.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby

from dualwrite.admin import TransactionDescription
from dualwrite.content import Row
from dualwrite.errors import ConfigurationError, HeuristicAbort, InvalidTxnState
from dualwrite.outcome import Finding, examine
from dualwrite.prepared import PreparedTxnState
from dualwrite.producer import TwoPhaseProducer
from dualwrite.slot_ids import resumable_id
from dualwrite.slot_pool import Slot
from dualwrite.steps import Steps, call
from dualwrite.store import Heuristic
from dualwrite.surroundings import Surroundings
from dualwrite.transaction import ConsumedOffsets, Message, Unit

logger = logging.getLogger(__name__)


class TwoPhase:
    """A broker that keeps prepared transactions (InitProducerId v6, transaction.version 2)."""

    name = "2pc"
    id_pattern = r"-[0-9]+"
    """What follows the app's name in the ids that Kafka sees."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def send(self, unit: Unit) -> Steps[PreparedTxnState]:
        """Send everything; gives the pair under which it will be prepared."""
        around, producer = self._around, unit.slot.busy()
        yield from call(producer.begin_transaction)
        around.at("begun")
        yield from send(producer, unit.buffer.entries)
        pair = yield from call(producer.start_prepare)
        around.at("produced")
        return pair

    def remember(self, unit: Unit) -> Steps[None]:
        """Write the state into the local transaction, as its last statement."""
        slot, local = unit.slot, unit.local
        yield from call(
            self._around.store.remember,
            local.handle,
            slot.transactional_id,
            unit.state,
            slot.fence,
        )

    def prepare(self, unit: Unit) -> Steps[None]:
        """Wait until everything that was sent is durable; only the outcome is open then."""
        producer = unit.slot.producer
        assert producer is not None
        prepared = yield from call(producer.prepare_transaction)
        if prepared != unit.state:
            raise InvalidTxnState(f"{unit.state} was to be prepared, and {prepared} was")
        self._around.at("prepared")

    def start_commit(self, slot: Slot) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.start_commit)

    def commit(self, slot: Slot, state: PreparedTxnState) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.commit_transaction)
        slot.is_ready = True

    def abort(self, slot: Slot) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.abort_transaction)
        slot.is_ready = True

    def slot_of(self, kafka_id: str) -> str:
        """The slot that an id belongs to, as Kafka sees it."""
        return kafka_id

    def recover(self, slot: Slot) -> Steps[None]:
        """Bring a slot into the ready state; `Fenced` if it is somebody else's by now."""
        around = self._around
        yield from claim_again(around, slot)
        around.at("claimed")
        yield from bind_cluster(around, slot)
        producer = yield from replace_producer(around, slot, slot.transactional_id, two_phase=True)
        yield from call(producer.init_transactions, keep_prepared_txn=True)
        around.at("initialised")
        described = yield from call(around.kafka.describe, slot.transactional_id)
        state = yield from recall(around, slot)
        around.at("recalled")
        ongoing = producer.prepared_txn_state
        finding = examine(state, ongoing, described.last_finished if described else None)
        yield from self._complete(producer, state, finding)
        around.at("recovered")
        if ongoing.has_transaction:
            around.recovered(slot.transactional_id, ongoing, committed=ongoing == state)
        if not (yield from self._is_of_resume_mode(slot, finding)):
            yield from judge(around, slot, state, finding, described)
        slot.is_ready = True

    def _complete(
        self, producer: TwoPhaseProducer, state: PreparedTxnState, finding: Finding
    ) -> Steps[None]:
        try:
            yield from call(producer.complete_transaction, state)
        except HeuristicAbort:
            if finding is not Finding.HEURISTIC_ABORT:
                raise

    def _is_of_resume_mode(self, slot: Slot, finding: Finding) -> Steps[bool]:
        """Whether the state is of a transaction in resume mode, which has an id of its own."""
        if finding not in (Finding.DATABASE_BEHIND, Finding.FORGOTTEN):
            return False
        resumed = resumable_id(slot.transactional_id, slot.claim.state_fence)
        return (yield from call(self._around.kafka.describe, resumed)) is not None


def claim_again(around: Surroundings, slot: Slot) -> Steps[None]:
    """Claim the slot unless its claim is fresh, and only if the fence is still ours."""
    if slot.is_claimed:
        return
    slot.claim = yield from slot.under_fence(
        call(around.store.claim, slot.transactional_id, slot.fence, owner=around.owner_name)
    )
    slot.is_claimed = True


def recall(around: Surroundings, slot: Slot) -> Steps[PreparedTxnState]:
    """Read the state under the own fence."""
    read = call(around.store.recall, slot.transactional_id, slot.fence)
    return (yield from slot.under_fence(read))


def bind_cluster(around: Surroundings, slot: Slot) -> Steps[None]:
    """Bind the row to this cluster, or refuse: its memory is of another cluster's transactions."""
    bound = slot.claim.cluster_id
    if bound == around.cluster_id:
        return
    around.check_cluster(slot.transactional_id, bound)
    store, name = around.store, slot.transactional_id
    yield from slot.under_fence(call(store.bind_cluster, name, slot.fence, around.cluster_id))


def replace_producer(
    around: Surroundings, slot: Slot, kafka_id: str, *, two_phase: bool
) -> Steps[TwoPhaseProducer]:
    """Give the slot a new producer; an old one can be in any state, and recovery needs none of them."""
    yield from close_producer(slot)
    slot.producer = around.kafka.producer(kafka_id, two_phase=two_phase)
    slot.producer_fence = slot.fence
    return slot.producer


def close_producer(slot: Slot) -> Steps[None]:
    producer, slot.producer = slot.producer, None
    if producer is None:
        return
    try:
        # Nothing is aborted here: it may be decided, and only recovery knows.
        yield from call(producer.close, 0, leave_open=True)
    except Exception as error:
        # It is thrown away, and recovery asks the broker.
        logger.debug("closing a producer failed", exc_info=error)


def judge(
    around: Surroundings,
    slot: Slot,
    state: PreparedTxnState,
    finding: Finding,
    described: TransactionDescription | None,
) -> Steps[None]:
    """Raise an alarm if Kafka has already finished something otherwise than the store says."""
    name, finished = slot.transactional_id, described and described.last_finished
    match finding:
        case Finding.AGREES:
            return
        case Finding.FORGOTTEN if slot.is_settled:
            return
        case Finding.HEURISTIC_ABORT:
            yield from _report_heuristic_abort(around, name, state, finished.cause)  # type: ignore[union-attr]
        case Finding.DATABASE_BEHIND if not around.adopt:
            raise ConfigurationError(
                f"{name}: Kafka has committed {finished and finished.pair}, the store remembers"
                f" {state}: it was restored or has lost commits, or another program uses the id;"
                " to go on from here, open once with adopt=True"
            )
        case Finding.DATABASE_BEHIND | Finding.NEW_DATABASE | Finding.FORGOTTEN:
            around.alarm(finding.name.lower(), name, state)


def _report_heuristic_abort(
    around: Surroundings, transactional_id: str, state: PreparedTxnState, cause: str
) -> Steps[None]:
    known = yield from call(around.store.heuristics, transactional_id)
    if any(entry.state == state and entry.action == "abort" for entry in known):
        around.alarm("heuristic_abort_known", transactional_id, state)
        return
    yield from call(
        around.store.record_heuristic,
        Heuristic(
            transactional_id=transactional_id,
            state=state,
            action="abort",
            reason=f"found by recovery: ended by cause={cause}",
            recorded_by=around.owner_name,
        ),
    )
    around.heuristic_abort(transactional_id, state)


def send(producer: TwoPhaseProducer, entries: Iterable[Message | ConsumedOffsets]) -> Steps[None]:
    """Hand the buffered messages to a producer, in their order."""
    for key, group in groupby(entries, _kind):
        if key is None:
            for entry in group:
                yield from _send_one(producer, entry)
        else:
            topic, partition = key
            yield from call(producer.produce_batch, topic, _rows(group), partition)


def _kind(entry: Message | ConsumedOffsets) -> tuple[str, int] | None:
    """Neighbours for one topic go as a batch; what has a callback, and offsets, go one by one."""
    if isinstance(entry, ConsumedOffsets) or entry.on_delivery is not None:
        return None
    return entry.topic, entry.partition


def _rows(group: Iterable[Message | ConsumedOffsets]) -> Iterator[Row]:
    for entry in group:
        assert isinstance(entry, Message)
        yield entry.key, entry.value, entry.headers, entry.timestamp


def _send_one(producer: TwoPhaseProducer, entry: Message | ConsumedOffsets) -> Steps[None]:
    if isinstance(entry, ConsumedOffsets):
        offsets = {
            (topic, one.partition): one for topic, some in entry.offsets.items() for one in some
        }
        yield from call(producer.send_offsets_to_transaction, offsets, entry.group)
        return
    while True:
        try:
            yield from call(
                producer.produce,
                entry.topic,
                entry.value,
                entry.key,
                entry.partition,
                entry.on_delivery,
                entry.timestamp,
                entry.headers or None,
            )
        except BufferError:
            yield from call(producer.poll, 0.05)
        else:
            return
