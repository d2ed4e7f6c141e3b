"""A coordinator on a bench: decisions are executed as the node does it, through encoded records."""

from dualwrite.broker.clock import Now
from dualwrite.broker.transactions.coordinator import (
    Availability,
    Coordinator,
    CoordinatorSettings,
)
from dualwrite.broker.transactions.records import decode_record, encode_key, encode_value
from dualwrite.broker.transactions.state import NO_PAIR, Pair, PartitionRef, Transaction
from dualwrite.wire.error_codes import ErrorCode

ID = "tx-1"
P0 = PartitionRef("orders", 0)
P1 = PartitionRef("orders", 1)
COMMIT, ABORT = True, False


class ListedIds:
    """Producer ids in a chosen order; None means that there is none at the moment."""

    def __init__(self, *ids):
        self.ids = list(ids)

    def take(self):
        return self.ids.pop(0)


class Bench:
    """One coordinator, its log and its clock."""

    def __init__(self, *ids, **settings):
        self.ids = ListedIds(*(ids or range(42, 1042)))
        self.availability = {}
        self.settings = CoordinatorSettings(**settings)
        self.log = []
        self.markers = []
        self.steady_ms = 1_000
        self.wall_ms = 1_700_000_000_000
        self.coordinator = self._empty()

    def _empty(self):
        return Coordinator(
            self.settings,
            self.ids,
            lambda partition: self.availability.get(partition, Availability.ONLINE),
        )

    @property
    def now(self):
        return Now(self.wall_ms, self.steady_ms)

    def advance(self, ms):
        self.steady_ms += ms
        self.wall_ms += ms

    def execute(self, decision):
        for record in decision.records:
            self.log.append((encode_key(record.transactional_id), encode_value(record)))
            self.coordinator.replay(record)
        self.markers += decision.markers
        return decision

    def restart(self):
        """Forget everything and read the log back."""
        self.coordinator = self._empty()
        for key, value in self.log:
            self.coordinator.replay(decode_record(key, value))

    def init(
        self, expected=NO_PAIR, *, timeout_ms=60_000, two_phase=False, keep=False, id=ID, owner=""
    ):
        return self.execute(
            self.coordinator.init_producer_id(
                id,
                timeout_ms=timeout_ms,
                expected=expected,
                enable_2pc=two_phase,
                keep_prepared=keep,
                owner=owner,
                now=self.now,
            )
        )

    def add(self, pair, *partitions, tv2=True, id=ID):
        return self.execute(
            self.coordinator.add_partitions(id, pair, partitions or (P0,), tv2=tv2, now=self.now)
        )

    def verify(self, pair, *partitions, id=ID):
        return self.execute(self.coordinator.verify(id, pair, partitions or (P0,)))

    def end(self, pair, commit=COMMIT, *, tv2=True, id=ID):
        return self.execute(
            self.coordinator.end_txn(id, pair, commit=commit, tv2=tv2, now=self.now)
        )

    def timeouts(self):
        return [self.execute(d) for d in self.coordinator.abort_timed_out(self.now)]

    def expire(self):
        return self.execute(self.coordinator.expire_ids(self.now))

    def complete(self):
        return [self.execute(d) for d in self.coordinator.complete_decided(self.now)]

    def at(self, id=ID):
        return self.coordinator.get(id)

    def begin(self, epoch=0, *, two_phase=False, tv2=True, id=ID):
        """Init until the pair has `epoch`, and open a transaction."""
        pair = self.init(two_phase=two_phase, id=id).producer
        while pair.producer_epoch < epoch:
            pair = self.init(two_phase=two_phase, id=id).producer
        assert pair.producer_epoch == epoch
        ok(self.add(pair, tv2=tv2, id=id))
        return pair

    def seed(self, **fields):
        """Put a state into the log as it would have got there long ago."""
        record = Transaction(
            **{
                "transactional_id": ID,
                "timeout_ms": 60_000,
                "update_ms": self.wall_ms,
                "update_steady_ms": self.steady_ms,
                **fields,
            }
        )
        self.log.append((encode_key(record.transactional_id), encode_value(record)))
        self.coordinator.replay(record)
        return record.pair


def ok(decision):
    assert decision.error is ErrorCode.NONE, decision
    return decision


def code(decision):
    """The number on the wire; nothing may have been written for a refusal but 51."""
    if decision.error not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):
        assert decision.records == ()
        assert decision.markers == ()
        assert decision.producer == NO_PAIR
    return int(decision.error)


def after(pair, steps=1):
    return Pair(pair.producer_id, pair.producer_epoch + steps)
