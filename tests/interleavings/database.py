"""A database in memory, with what matters of one: row locks, and COMMIT whose answer may be lost."""

from dualwrite.adapters.awaitable import AwaitableStore, in_greenlet
from dualwrite.adapters.claims import settled_claim
from dualwrite.adapters.rows import KeptRow
from dualwrite.errors import Fenced, InvalidTxnState, RetryableError
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import of_app
from dualwrite.store import CannotDecideYet, CommitUnknown, Durability, StoreUnavailable
from tests.interleavings.network import exchange
from tests.interleavings.virtual import Process, now, sleep

LOCK_TIMEOUT = 1.0
LOCK_LOOK = 0.02


class Refused(Exception):
    """A constraint: nothing of the transaction has happened, and it would not the next time."""


class Database:
    """What is committed, and which transactions are open."""

    def __init__(self, network):
        self.network = network
        self.orders = []
        self.state, self.outbox, self.leases = {}, {}, {}
        self.heuristics = []
        self.locks = {}
        self.open = []

    def disconnect(self, process):
        """The sessions of a dead process end, sooner or later; a COMMIT may have arrived."""
        for transaction in [each for each in self.open if each.process is process]:
            end = transaction.roll_back
            if transaction.is_committing and self.network.chance(0.5):
                end = transaction.land
            self.network.later(self.network.random.uniform(0, 3), end)


class Transaction:
    """`LocalTransaction`, and the server's side of it."""

    reads_from_snapshot = False

    def __init__(self, store):
        self._store, self.network, self._database = store, store.network, store.database
        self.process = Process.current.get()
        self.orders, self.state, self.outbox = [], {}, {}
        self.is_committing = self.is_open_here = self.is_open = True
        self.is_committing = False
        self._database.open.append(self)

    def __repr__(self):
        return f"a transaction with {self.orders}"

    @property
    def handle(self):
        return self

    def resource(self, name):
        return self.orders

    def watch_savepoints(self, opened, rolled_back):
        pass

    def lock(self, row, timeout):
        """Wait for a row that another transaction has written."""
        until = now() + timeout
        while self._database.locks.get(row) not in (None, self):
            if now() >= until:
                raise CannotDecideYet(f"{row} is locked")
            sleep(LOCK_LOOK)
            self.process.check()
        self._database.locks[row] = self

    def require(self):
        if not self.is_open:
            raise RetryableError("the server has ended the session")

    @exchange(lambda: RetryableError("connection lost"))
    def flush(self):
        self.require()

    def commit(self):
        if not self.is_open_here:
            raise InvalidTxnState("the local transaction has already been ended")
        network = self.network
        self.is_committing = True
        try:
            network.request(lambda: ConnectionError("no answer to COMMIT"))
            if self.orders and network.chance(network.rates.commit_refused):
                self.rollback()
                raise Refused
            if network.chance(network.rates.commit_lost):
                raise ConnectionError("no answer to COMMIT")
            self.require()
            self.land()
            network.answer(lambda: ConnectionError("no answer to COMMIT"))
        except (ConnectionError, RetryableError, KeyboardInterrupt) as cause:
            self._abandon()
            raise CommitUnknown("no answer to COMMIT") from cause
        self.is_open_here = False

    def _abandon(self):
        """The connection is thrown away; the server reads COMMIT or the end, whichever came first."""
        self.is_open_here = False
        if self.network.chance(0.1):
            self.process.stopped_until = now() + 5
        end = self.network.random.choice((self.land, self.roll_back))
        self.network.later(self.network.random.choice((0, 0, 0.1, 2.5)), end)

    def rollback(self):
        self.is_open_here = False
        self.process.check()
        self.roll_back()

    def land(self):
        if self.is_open:
            self._database.orders += self.orders
            self._database.state |= self.state
            self._database.outbox |= self.outbox
            self.network.note(
                f"COMMIT of {self.orders} {[str(r.state) for r in self.state.values()]}"
            )
        self.roll_back()

    def roll_back(self):
        self.is_open = False
        if self in self._database.open:
            self._database.open.remove(self)
        for row in [row for row, holder in self._database.locks.items() if holder is self]:
            del self._database.locks[row]


def _unavailable():
    return StoreUnavailable("no answer")


class Store:
    """`Store` over the database, for one process."""

    def __init__(self, database):
        self.database, self.network = database, database.network

    def aio(self):
        return AwaitableStore(self, in_greenlet)

    def close(self):
        pass

    def durability(self):
        return Durability(())

    def claim(self, id, expect=None, *, owner=None):
        return settled_claim(
            lambda: self._claim(id, expect, owner), lambda: self.row(id), expect, owner
        )

    @exchange(_unavailable)
    def _claim(self, id, expect, owner):
        transaction = Transaction(self)
        try:
            transaction.lock(id, LOCK_TIMEOUT)
            row = self.database.state.get(id, KeptRow(transactional_id=id))
            if expect is not None and row.fence != expect:
                raise Fenced(f"{id} has fence {row.fence}, not {expect}")
            self.database.state[id] = row.claimed(owner)
            return self.database.state[id].claim
        finally:
            transaction.roll_back()

    @exchange(_unavailable)
    def begin(self, handle=None):
        return Transaction(self)

    @exchange(lambda: RetryableError("connection lost"))
    def remember(self, handle, id, state, fence):
        handle.require()
        handle.lock(id, 1000)
        handle.require()
        row = self._fenced(id, fence)
        handle.state[id] = row.remembering(state)

    @exchange(_unavailable)
    def recall(self, id, fence):
        return self._fenced(id, fence).state

    @exchange(_unavailable)
    def release(self, id, fence):
        return self._change(id, fence, owner="")

    @exchange(_unavailable)
    def bind_cluster(self, id, fence, cluster_id):
        if not self._change(id, fence, cluster_id=cluster_id):
            raise Fenced(id)

    @exchange(_unavailable)
    def row(self, id):
        row = self.database.state.get(id)
        return None if row is None else row.store_row(self._is_live(row.owner))

    @exchange(_unavailable)
    def rows(self, app=None):
        rows = self.database.state.values()
        return of_app([row.store_row(self._is_live(row.owner)) for row in rows], app)

    @exchange(_unavailable)
    def lease(self, owner, seconds):
        self.database.leases[owner] = now() + seconds

    @exchange(_unavailable)
    def renew(self, owner, seconds):
        if is_live := self._is_live(owner):
            self.database.leases[owner] = now() + seconds
        return is_live

    @exchange(_unavailable)
    def end_lease(self, owner):
        self.database.leases.pop(owner, None)

    @exchange(_unavailable)
    def record_heuristic(self, heuristic):
        self.database.heuristics.append(heuristic)

    @exchange(_unavailable)
    def heuristics(self, id=None):
        return [each for each in self.database.heuristics if id in (None, each.transactional_id)]

    @exchange(lambda: RetryableError("connection lost"))
    def keep_messages(self, handle, id, state, messages):
        handle.require()
        handle.lock(("outbox", id), 1000)
        handle.outbox[id] = (state, list(messages))

    @exchange(_unavailable)
    def kept_messages(self, id, state):
        found, messages = self.database.outbox.get(id, (PreparedTxnState.NONE, []))
        return messages if found == state else []

    @exchange(_unavailable)
    def forget_messages(self, id, state):
        transaction = Transaction(self)
        try:
            transaction.lock(("outbox", id), LOCK_TIMEOUT)
            if self.database.outbox.get(id, (None, []))[0] == state:
                del self.database.outbox[id]
        finally:
            transaction.roll_back()

    def _fenced(self, id, fence):
        row = self.database.state.get(id)
        if row is None or row.fence != fence:
            raise Fenced(f"{id} no longer has fence {fence}")
        return row

    def _change(self, id, fence, **values):
        row = self.database.state.get(id)
        if row is None or row.fence != fence:
            return False
        self.database.state[id] = row.changed(**values)
        return True

    def _is_live(self, owner):
        return self.database.leases.get(owner, 0.0) > now()
