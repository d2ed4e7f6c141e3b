"""A small world to run the sink's real coordinator in: KIP-939 in memory, and a scheduler.

Each actor is a thread that runs only while it holds the turn; it gives the turn back before every
call to Kafka or to the ledger. So a schedule, the list of who runs when, decides everything.
"""

import threading
from collections.abc import Callable

from dualwrite.errors import DualWriteError, Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.recipes.spark.ledger import Ledger, Participant
from dualwrite.recipes.spark.names import slot_id

NONE = PreparedTxnState.NONE


class Killed(BaseException):
    """The actor's process is gone."""


class Scheduler:
    """Runs actors one at a time; `schedule` says after how many steps of whom the turn changes."""

    def __init__(self):
        self._turn = threading.Semaphore(0)
        self._actors = {}
        self.trace = []

    def add(self, name, work: Callable[[], object]):
        self._actors[name] = Actor(name, work, self._turn)

    def step(self, name) -> bool:
        """Let the actor run to its next call; False if it has ended."""
        actor = self._actors[name]
        if actor.is_done:
            return False
        self.trace.append(name)
        actor.go.release()
        self._turn.acquire()
        return not actor.is_done

    def finish(self, name):
        while self.step(name):
            pass

    def kill(self, name):
        actor = self._actors[name]
        actor.is_killed = True
        self.finish(name)

    def error_of(self, name):
        return self._actors[name].error

    def is_done(self, name):
        return self._actors[name].is_done


class Actor:
    current = threading.local()

    def __init__(self, name, work, turn):
        self.name, self.go, self.turn = name, threading.Semaphore(0), turn
        self.is_done, self.is_killed, self.error = False, False, None
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work):
        Actor.current.actor = self
        self.go.acquire()
        try:
            if not self.is_killed:
                work()
        except (Killed, DualWriteError) as error:
            self.error = error
        finally:
            self.is_done = True
            self.turn.release()


def pause():
    """Give the turn back; called by the world before each thing that others could see."""
    actor = getattr(Actor.current, "actor", None)
    if actor is None:
        return
    actor.turn.release()
    actor.go.acquire()
    if actor.is_killed:
        raise Killed


class ModelLog:
    """The ledger in memory: reading and changing it are each one step."""

    def __init__(self):
        self.ledger = Ledger()

    def read(self):
        pause()
        return self.ledger

    def update(self, change):
        pause()
        self.ledger = self.ledger.with_entries(change(self.ledger))
        return self.ledger


class Id:
    def __init__(self):
        self.epoch, self.ongoing, self.rows = 0, None, []


class ModelKafka:
    """Transactional ids with a client pair and an ongoing pair, as KIP-939 keeps them."""

    def __init__(self, sink, *, keeps_prepared=True):
        self.sink, self.ids, self.committed = sink, {}, []
        self._keeps_prepared = keeps_prepared

    def begin(self, partition, attempt_number):
        for busy in range(16):
            taken = self.inspect(slot_id(self.sink, partition, attempt_number + busy))
            if not taken.ongoing.has_transaction:
                return ModelTask(taken, busy)
        raise AssertionError("no free slot")

    def open_ids(self):
        pause()
        return [name for name, one in self.ids.items() if one.ongoing is not None]

    def inspect(self, transactional_id):
        pause()
        one = self.ids.setdefault(transactional_id, Id())
        one.epoch += 1
        if not self._keeps_prepared:
            one.ongoing, one.rows = None, []
        return ModelTaken(self, transactional_id, one)


class ModelTaken:
    def __init__(self, kafka, transactional_id, one):
        self.kafka, self.transactional_id, self.one = kafka, transactional_id, one
        self.epoch = one.epoch
        self.ongoing = NONE if one.ongoing is None else PreparedTxnState(1, one.ongoing)

    def commit(self, state):
        if state == self.ongoing:
            self._end(True)

    def abort(self):
        self._end(False)

    def close(self):
        pass

    def _end(self, commits):
        pause()
        if self.one.epoch != self.epoch:
            raise Fenced(self.transactional_id)
        if self.one.ongoing is None:
            return
        if commits:
            self.kafka.committed += self.one.rows
        self.one.ongoing, self.one.rows = None, []
        self.one.epoch += 1
        self.epoch = self.one.epoch


class ModelTask:
    def __init__(self, taken, busy):
        self._taken, self.busy = taken, busy

    def send(self, row):
        pause()
        one = self._taken.one
        if one.epoch != self._taken.epoch:
            raise Fenced(self._taken.transactional_id)
        one.ongoing = self._taken.epoch
        one.rows.append(row)

    def prepare(self):
        return Participant(self._taken.transactional_id, PreparedTxnState(1, self._taken.epoch))
