"""The Kafka side of a dual write on brokers without KIP-939 (Kafka >= 3.0, Redpanda).

"Prepared" is here: every record is acknowledged, and the transaction is open under a pair that the
store remembers. Recovery ends it by a raw EndTxn with exactly that pair. InitProducerId would abort
it, so every claim brings a new id, `<app>-<slot>.<fence>`, that nobody has used before.

The limit: such a broker aborts what is open for longer than `transaction.timeout.ms`. So the
messages are kept in the store, in the same local transaction, until the Kafka commit is
acknowledged. When the coordinator shows that the pair was timed out, they are sent again under a
new transaction. Any other doubt is an alarm: sending again could duplicate. An operator's forced
abort looks like a timeout, but was written down before: nothing is sent again against his word. In
both cases the copy is put aside under the transaction's own id, `<app>-<slot>.<fence>`, which no
later transaction has. There a person finds it (`store.kept_messages(id, state)`,
`kept_messages.decode`), and takes it away when it is dealt with (`store.forget_messages(id, state)`).
"""

import logging
import re
import time

from dualwrite.admin import TransactionDescription
from dualwrite.errors import ConfigurationError, KafkaError, RetryableError
from dualwrite.kept_messages import decode, encode_all
from dualwrite.outcome import Fate, fate
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import resumable_id
from dualwrite.slot_pool import Slot
from dualwrite.steps import Steps, call
from dualwrite.store import Heuristic
from dualwrite.surroundings import Surroundings
from dualwrite.transaction import ConsumedOffsets, Unit
from dualwrite.two_phase import bind_cluster, claim_again, recall, replace_producer, send

TRANSACTIONS_V2 = 2
_NOT_PROVEN = "not proven"


class Resume:
    """Transactions that are resumed by their pair, with a copy of the messages behind them."""

    name = "resume"
    id_pattern = r"-[0-9]+\.[0-9]+"

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def slot_of(self, kafka_id: str) -> str:
        return kafka_id.rpartition(".")[0]

    def send(self, unit: Unit) -> Steps[PreparedTxnState]:
        """Send everything and wait for it: how old the transaction is, is judged afterwards."""
        if any(isinstance(entry, ConsumedOffsets) for entry in unit.buffer.entries):
            raise ConfigurationError(
                "consumed offsets cannot be sent again after a timeout: without KIP-939 keep them"
                " in the database, in the same transaction as the data"
            )
        producer = unit.slot.busy()
        yield from call(producer.begin_transaction)
        self._around.at("begun")
        yield from send(producer, unit.buffer.entries)
        self._around.at("produced")
        pair = yield from call(producer.flush_transaction)
        self._around.at("prepared")
        return pair

    def remember(self, unit: Unit) -> Steps[None]:
        store, slot, handle = self._around.store, unit.slot, unit.local.handle
        kept = encode_all(unit.buffer.entries)
        name = slot.transactional_id
        # The state first: who is overtaken must not wait for the rows of its successor's messages, nor
        # lock them while it stands still, as no claim would wait for these.
        yield from call(store.remember, handle, name, unit.state, slot.fence)
        yield from call(store.keep_messages, handle, name, unit.state, kept)

    def prepare(self, unit: Unit) -> Steps[None]:
        """Everything was acknowledged before the pair was remembered; see that enough time is left.

        Nothing but COMMIT comes after this: the last statements may have waited for locks.
        """
        yield from ()
        elapsed = time.monotonic() - unit.opened_at
        if elapsed > self._around.resume_timeout / 2:
            raise RetryableError(
                f"the Kafka transaction is {elapsed:.0f} s old: too little of"
                f" transaction.timeout.ms ({self._around.resume_timeout:.0f} s) is left to decide it"
            )

    def start_commit(self, slot: Slot) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.start_commit)

    def commit(self, slot: Slot, state: PreparedTxnState) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.commit_transaction)
        # The next transaction may begin only after this: a copy that is still there means that no
        # later transaction of the id exists, which is what recovery builds on.
        yield from call(self._around.store.forget_messages, slot.transactional_id, state)
        yield from self._next_pair(slot)

    def abort(self, slot: Slot) -> Steps[None]:
        assert slot.producer is not None
        yield from call(slot.producer.abort_transaction)
        yield from self._next_pair(slot)

    def recover(self, slot: Slot) -> Steps[None]:
        """End what is open under any id of the slot, send again what timed out, take a new id."""
        around = self._around
        yield from claim_again(around, slot)
        around.at("claimed")
        yield from bind_cluster(around, slot)
        state = slot.claim.state
        kept, is_lost = yield from self._end_decided(slot, state)
        yield from self._end_two_phase(slot)
        yield from self._abort_open(slot)
        producer = yield from replace_producer(
            around, slot, resumable_id(slot.transactional_id, slot.fence), two_phase=False
        )
        # The id is as new as the fence, so there is nothing that this could abort.
        yield from call(producer.init_transactions, keep_prepared_txn=False)
        around.at("initialised")
        yield from recall(around, slot)
        if is_lost:
            yield from self._send_again(slot, kept)
        elif kept:
            yield from self._put_aside(slot, kept)
        slot.is_ready = True
        slot.is_claimed = False

    def _end_decided(self, slot: Slot, state: PreparedTxnState) -> Steps[tuple[list[bytes], bool]]:
        """Commit the remembered transaction if it is open.

        Gives the copy if Kafka has not surely committed it, and whether it must be sent again.
        """
        if not state.has_transaction:
            return [], False
        around = self._around
        kafka_id = resumable_id(slot.transactional_id, slot.claim.state_fence)
        found, kept = yield from self._look_at_decided(slot, kafka_id, state)
        if found is Fate.OPEN:
            try:
                yield from call(around.kafka.end_txn, kafka_id, state, True)
            except KafkaError:
                # It may have timed out since it was described; the coordinator knows.
                found, kept = yield from self._look_at_decided(slot, kafka_id, state)
                if found is Fate.OPEN:
                    raise
            else:
                around.recovered(kafka_id, state, committed=True)
                found = Fate.COMMITTED
        if found is Fate.COMMITTED and kept:
            yield from call(around.store.forget_messages, slot.transactional_id, state)
            kept = []
        if found is not Fate.ABORTED:
            return kept, False
        # Asked behind the abort, for a forced one is written down before it is done.
        written = yield from self._written_down(kafka_id, state)
        return kept, not written

    def _look_at_decided(
        self, slot: Slot, kafka_id: str, state: PreparedTxnState
    ) -> Steps[tuple[Fate, list[bytes]]]:
        """What became of it, and its copy, which is read last.

        An owner that was overtaken may still go on, up to where the database fences it. A copy that is
        there afterwards proves that it had not begun its next transaction when Kafka was asked.
        """
        described = yield from call(self._around.kafka.describe, kafka_id)
        name = slot.transactional_id
        kept = yield from call(self._around.store.kept_messages, name, state)
        if not kept:
            return Fate.COMMITTED, []  # its end was acknowledged
        return _fate(state, described), kept

    def _end_two_phase(self, slot: Slot) -> Steps[None]:
        """End what the slot left open when it was used in two-phase mode, under its bare id.

        The state is read after the pair was seen. While the fence is still ours, that transaction is
        older than the claim, so the state tells its outcome for good.
        """
        around, name = self._around, slot.transactional_id
        described = yield from call(around.kafka.describe, name)
        if described is None or described.state != "Ongoing":
            return
        state = yield from recall(around, slot)
        committed = described.pair == state
        try:
            yield from call(around.kafka.end_txn, name, described.pair, committed)
        except KafkaError as error:
            raise ConfigurationError(
                f"{name} was left prepared in two-phase mode, and cannot be ended without it"
                f" ({error}): open once with mode='2pc'"
            ) from error
        around.recovered(name, described.pair, committed=committed)

    def _abort_open(self, slot: Slot) -> Steps[None]:
        """Abort by their pairs whatever the slot's earlier owners left open and undecided.

        The claim's fence made sure that none of them can be decided any more.
        """
        around = self._around
        pattern = re.escape(slot.transactional_id) + r"\.[0-9]+"
        for kafka_id in (yield from call(around.kafka.open_ids, pattern)):
            if int(kafka_id.rpartition(".")[2]) >= slot.fence:
                continue  # of a newer claim: this one is overtaken
            described = yield from call(around.kafka.describe, kafka_id)
            if described is None or described.state != "Ongoing":
                continue
            yield from call(around.kafka.end_txn, kafka_id, described.pair, False)
            around.recovered(kafka_id, described.pair, committed=False)

    def _send_again(self, slot: Slot, kept: list[bytes]) -> Steps[None]:
        """Send the copy under a new transaction, decided by a local transaction like any other."""
        around, name = self._around, slot.transactional_id
        around.tell(logging.WARNING, "sent_again", name, slot.claim.state)
        local = yield from call(around.store.begin)
        unit = Unit(slot, local)
        unit.buffer.entries += [decode(data) for data in kept]
        unit.opened_at = time.monotonic()
        slot.is_ready = True  # for this transaction, which takes it out of that state
        try:
            unit.state = yield from self.send(unit)
            yield from slot.under_fence(self.remember(unit))
            yield from self.prepare(unit)
            yield from call(local.commit)
        except BaseException:
            yield from call(local.rollback)
            raise
        yield from self.commit(slot, unit.state)

    def _put_aside(self, slot: Slot, kept: list[bytes]) -> Steps[None]:
        """Leave the copy to a person, where no later transaction of the slot replaces it.

        It is written down first, so that a crash leaves no copy that nobody knows of. The alarm comes
        last and once: afterwards the slot has no copy any more. Who forced the end needs none.
        """
        around, name, state = self._around, slot.transactional_id, slot.claim.state
        kafka_id = resumable_id(name, slot.claim.state_fence)
        store = around.store
        written = yield from self._written_down(kafka_id, state)
        if not written:
            yield from call(store.record_heuristic, self._not_proven(kafka_id, state, len(kept)))
        local = yield from call(store.begin)
        try:
            # Remembered once more for the fence, and as what makes COMMIT durable in every store.
            yield from slot.under_fence(call(store.remember, local.handle, name, state, slot.fence))
            yield from call(store.keep_messages, local.handle, kafka_id, state, kept)
            yield from call(store.keep_messages, local.handle, name, state, [])
            yield from call(local.commit)
        except BaseException:
            yield from call(local.rollback)
            raise
        is_forced = any(not entry.reason.startswith(_NOT_PROVEN) for entry in written)
        event = "heuristic_abort_known" if is_forced else "decided_but_not_proven"
        around.alarm(event, kafka_id, state)

    def _written_down(self, kafka_id: str, state: PreparedTxnState) -> Steps[list[Heuristic]]:
        """Forced aborts of the transaction, and whether recovery once found it in doubt."""
        known = yield from call(self._around.store.heuristics, kafka_id)
        return [entry for entry in known if entry.state == state and entry.action == "abort"]

    def _not_proven(self, kafka_id: str, state: PreparedTxnState, count: int) -> Heuristic:
        messages = "1 message" if count == 1 else f"{count} messages"
        return Heuristic(
            transactional_id=kafka_id,
            state=state,
            action="abort",
            reason=f"{_NOT_PROVEN}: nobody can tell whether Kafka has committed it; {messages} kept"
            f" under {kafka_id}, to be sent by hand",
            recorded_by=self._around.owner_name,
        )

    def _next_pair(self, slot: Slot) -> Steps[None]:
        """Make sure that the next transaction has a pair of its own (KIP-890 does it by itself)."""
        assert slot.producer is not None
        if slot.producer_fence != slot.fence:
            return  # an unknown COMMIT was settled by a claim, and every claim needs an id of its own
        if slot.producer.transaction_version < TRANSACTIONS_V2:
            yield from call(slot.producer.bump_epoch)
        slot.is_ready = True


def _fate(state: PreparedTxnState, described: TransactionDescription | None) -> Fate:
    if described is None:
        return Fate.DOUBT
    return fate(state, described.state, described.pair)
