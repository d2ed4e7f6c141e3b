"""Bugs to plant. Each must be caught by some history: a checker that finds nothing proves nothing.

A mutant patches the writers' classes for the time of one history. `seed` is one that catches it.
"""

import contextlib

from dualwrite import dual_writer, resume, two_phase
from dualwrite.errors import KafkaError, RetryableError
from dualwrite.outcome import Fate
from dualwrite.resume import Resume
from dualwrite.slot_ids import resumable_id
from dualwrite.slot_queue import SlotQueue
from dualwrite.steps import call
from dualwrite.two_phase import TwoPhase
from dualwrite.upkeep import Upkeep
from dualwrite.write_path import WritePath
from tests.interleavings import database, kafka
from tests.simulation.planted import Mutant, registering

MUTANTS: dict[str, Mutant] = {}
mutant = registering(MUTANTS)


# The end of a dual write


@mutant(seed=1)
def an_unknown_commit_is_taken_for_a_rollback(patch):
    def resolve(self, unit, error):
        yield from self._abort(unit)
        raise RetryableError("it did not happen") from error

    patch.setattr(WritePath, "_resolve", resolve)


@mutant(seed=46)
def an_interrupted_commit_is_taken_for_a_rollback(patch):
    def resolve(self, unit, interruption):
        yield from self._abort(unit)
        raise interruption

    patch.setattr(WritePath, "_resolve_interrupted", resolve)


@mutant(seed=668)
def an_unknown_commit_is_claimed_whoever_has_the_slot(patch):
    def claim(self, slot):
        slot.claim = yield from call(self._around.store.claim, slot.transactional_id)

    patch.setattr(WritePath, "_claim", claim)


@mutant(seed=11)
def the_commit_does_not_wait_for_the_records(patch):
    def prepare(self, unit):
        yield from ()

    patch.setattr(TwoPhase, "prepare", prepare)


@mutant(seed=0)
def the_state_is_written_without_looking_at_the_fence(patch):
    patch.setattr(database.Store, "_fenced", lambda self, id, fence: self.database.state[id])


@mutant(seed=17)
def a_kafka_commit_that_fails_is_aborted(patch):
    finish = WritePath.finish

    def finish_or_abort(self, unit):
        outcome = yield from finish(self, unit)
        if outcome.kafka == "pending":
            with contextlib.suppress(KafkaError):
                name = unit.slot.transactional_id
                yield from call(self._around.kafka.end_txn, name, unit.state, False)
        return outcome

    patch.setattr(WritePath, "finish", finish_or_abort)


# Slots


@mutant(seed=0)
def a_slot_is_given_on_whatever_became_of_its_transaction(patch):
    def give_back(self, slot):
        self.upkeep.pool.take_back(slot)
        slot.is_ready = True
        self._give(slot)

    patch.setattr(dual_writer._Opened, "give_back", give_back)


@mutant(seed=0)
def a_unit_is_left_to_two_who_end_it(patch):
    put_ending = SlotQueue.put_ending

    def put_twice(self, unit):
        put_ending(self, unit)
        put_ending(self, unit)

    patch.setattr(SlotQueue, "put_ending", put_twice)


@mutant(seed=674)
def a_slot_is_ready_before_its_recovery_has_ended(patch):
    recall = resume.recall

    def recall_and_be_ready(around, slot):
        state = yield from recall(around, slot)
        slot.is_ready = True
        return state

    patch.setattr(resume, "recall", recall_and_be_ready)
    patch.setattr(two_phase, "recall", recall_and_be_ready)


# Recovery


@mutant(seed=32)
def recovery_decides_from_what_it_read_before_it_fenced_kafka(patch):
    def recall(around, slot):
        yield from ()
        return slot.claim.state

    patch.setattr(two_phase, "recall", recall)


@mutant(seed=7)
def recovery_aborts_what_was_prepared(patch):
    init = kafka.Producer.init_transactions
    patch.setattr(
        kafka.Producer, "init_transactions", lambda self, keep_prepared_txn=False: init(self)
    )


@mutant(seed=18)
def a_claim_does_not_wait_for_an_open_transaction(patch):
    def lock(self, row, timeout):
        self._database.locks[row] = self

    patch.setattr(database.Transaction, "lock", lock)


@mutant(seed=9)
def nobody_takes_over_from_the_dead(patch):
    def take_over(self, *, passing=()):
        yield from ()

    patch.setattr(Upkeep, "_take_over", take_over)


# Resume mode


@mutant(seed=0)
def the_copy_is_forgotten_before_the_kafka_commit(patch):
    commit = Resume.commit

    def forget_first(self, slot, state):
        store = self._around.store
        yield from call(store.forget_messages, slot.transactional_id, state)
        yield from commit(self, slot, state)

    patch.setattr(Resume, "commit", forget_first)


@mutant(seed=162)
def the_copy_is_read_before_kafka_is_asked(patch):
    def look(self, slot, kafka_id, state):
        kept = yield from call(self._around.store.kept_messages, slot.transactional_id, state)
        described = yield from call(self._around.kafka.describe, kafka_id)
        return (resume._fate(state, described), kept) if kept else (Fate.COMMITTED, [])

    patch.setattr(Resume, "_look_at_decided", look)


@mutant(seed=38)
def an_id_is_used_beyond_its_claim(patch):
    next_pair = Resume._next_pair

    def go_on(self, slot):
        slot.producer_fence = slot.fence
        yield from next_pair(self, slot)

    patch.setattr(Resume, "_next_pair", go_on)


@mutant(seed=0)
def pairs_repeat_without_version_2(patch):
    patch.setattr(resume, "TRANSACTIONS_V2", 0)


@mutant(seed=3)
def an_id_is_not_new_with_every_claim(patch):
    patch.setattr(resume, "resumable_id", lambda name, fence: resumable_id(name, 0))
