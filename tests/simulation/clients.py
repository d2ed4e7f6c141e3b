"""Simulated applications. Each function is one incarnation of a process; a crash ends it anywhere."""

from typing import Any

from tests.simulation.clumsy import (
    commit_nothing,
    commit_offsets_unasked,
    end_again,
    end_by_version_1,
    write_into_kept,
    write_unasked,
)
from tests.simulation.database import Database
from tests.simulation.ledger import Intent, Ledger
from tests.simulation.requests import (
    FENCED,
    STRAY_REQUESTS,
    add_partition,
    code_of,
    commit_offset,
    end,
    init,
    produce,
    read_offset,
)
from tests.simulation.world import Send, Sleep, Violation, World

OUTPUTS = [("orders", 0), ("orders", 1), ("payments", 0)]
PLAIN_TIMEOUT_MS = 30_000
FENCED_BY_NEWER, AGAIN = "fenced by a newer instance", "recover again"

Pair = tuple[int, int]


class Quota:
    """How many transactions an id still has to write, over all incarnations."""

    def __init__(self, count: int) -> None:
        self.left = count


class Watch:
    """Tells whether a client that is fenced has a cause: somebody's init, or its own timeout."""

    def __init__(self, world: World, transactional_id: str) -> None:
        self._world = world
        self._id = transactional_id
        self._inits = 0

    def owns(self, pair: Pair) -> None:
        """This client has got `pair` by InitProducerId."""
        self._inits = self._world.given[pair]

    @property
    def is_fenced(self) -> bool:
        """Whether somebody else has got an answer to a later InitProducerId."""
        return self._world.answered.get(self._id, 0) > self._inits

    def fenced(self, code: int, since_ms: int | None = None) -> None:
        """`since_ms`: the begin of a transaction that may time out."""
        if self._world.inits.get(self._id, 0) != self._inits:
            return
        if since_ms is not None and self._world.now_ms - since_ms >= PLAIN_TIMEOUT_MS:
            return
        raise Violation(f"{self._id} is told {code} though nobody else has taken its id")


def pause(world: World) -> Sleep:
    return Sleep(world.random.choice([0, 0, 5, 40, 200]))


# Dual writes (KIP-939)


def dual_writer(
    world: World, ledger: Ledger, database: Database, transactional_id: str, quota: Quota
) -> Any:
    """Recover, then write to the database and to Kafka, transaction after transaction."""
    watch = Watch(world, transactional_id)
    while True:
        recovered = yield from recover(world, database, transactional_id, watch)
        if recovered == FENCED_BY_NEWER:
            return
        if recovered == AGAIN:
            continue
        pair, fence = recovered
        while quota.left > 0:
            quota.left -= 1
            intent = ledger.begin(transactional_id, "dual")
            result = yield from dual_write(world, database, intent, pair, fence, watch)
            if result == FENCED_BY_NEWER:
                return
            if result == AGAIN:
                break
            pair = result
        else:
            return


def recover(world: World, database: Database, transactional_id: str, watch: Watch) -> Any:
    """Claim, init with keepPreparedTxn, read the state again, complete (design 4.3)."""
    fence = database.claim(transactional_id)
    yield pause(world)
    reply = yield from init(
        world,
        transactional_id,
        version=6,
        enable_2pc=True,
        keep_prepared_txn=True,
        transaction_timeout_ms=60_000,
    )
    pair = (reply.producer_id, reply.producer_epoch)
    watch.owns(pair)
    ongoing = f"{reply.ongoing_txn_producer_id}:{reply.ongoing_txn_producer_epoch}"
    yield pause(world)
    state = database.recall(transactional_id, fence)
    if state is None:
        return FENCED_BY_NEWER
    if reply.ongoing_txn_producer_id == -1:
        last = f"{reply.last_producer_id}:{reply.last_producer_epoch}"
        if state == last and reply.last_outcome != "commit":
            raise Violation(f"{state} of {transactional_id} was decided and is aborted")
        return pair, fence
    commit = state == ongoing
    if world.errs():
        yield from write_into_kept(world, transactional_id, pair)
    world.note(f"{transactional_id} recovers {ongoing}: {'commit' if commit else 'abort'}")
    answer = yield from end(world, transactional_id, pair, commit=commit, version=5)
    if answer.error_code in FENCED:
        watch.fenced(answer.error_code)
        return AGAIN
    if answer.error_code:
        raise Violation(f"recovery of {transactional_id} is told {answer.error_code}")
    return (answer.producer_id, answer.producer_epoch), fence


def dual_write(
    world: World, database: Database, intent: Intent, pair: Pair, fence: int, watch: Watch
) -> Any:
    """One transaction; gives the next pair, or why there is none."""
    transactional_id = intent.transactional_id
    if world.errs():
        yield from commit_nothing(world, transactional_id, pair)
        return AGAIN
    code = yield from write_records(world, intent, pair, {}, 12, watch)
    if code in FENCED:
        watch.fenced(code)
        return AGAIN
    if code not in (0, None):
        raise Violation(f"Produce of {intent.name} is told {code}")
    if code == 0 and world.errs():
        yield from end_by_version_1(world, transactional_id, pair)
    commits = code == 0 and world.random.random() < 0.85
    if commits:
        yield pause(world)
        verdict = database.commit(
            transactional_id, fence, f"{pair[0]}:{pair[1]}", intent.name, intent.records
        )
        world.note(f"{intent.name} {pair[0]}:{pair[1]} database {verdict}")
        if verdict == "fenced":
            return FENCED_BY_NEWER
        if verdict == "unknown":
            return AGAIN
        yield pause(world)
    answer = yield from end(world, transactional_id, pair, commit=commits, version=5)
    world.note(f"{intent.name} ends with {answer.error_code}")
    if answer.error_code in FENCED:
        watch.fenced(answer.error_code)
        return AGAIN
    if answer.error_code:
        raise Violation(f"EndTxn of {intent.name} is told {answer.error_code}")
    if world.errs():
        yield from end_again(world, transactional_id, pair, answer, commit=commits, version=5)
    return answer.producer_id, answer.producer_epoch


def write_records(
    world: World,
    intent: Intent,
    pair: Pair,
    sequences: dict[tuple[str, int], int],
    version: int,
    watch: Watch,
) -> Any:
    """Produce a few batches; 0, or the first code that isn't, or None for "no answer"."""
    random = world.random
    for _ in range(random.randint(1, 3)):
        where = random.choice(OUTPUTS)
        first = len(intent.records)
        values = [
            f"{intent.name}/{first + number}".encode() for number in range(random.randint(1, 2))
        ]
        intent.records += [(*where, value) for value in values]
        sequence = sequences.get(where, 0)
        sequences[where] = sequence + len(values)
        was_fenced = watch.is_fenced
        code = yield from produce(
            world, intent.transactional_id, pair, where, sequence, values, version=version
        )
        if code != 0:
            return code
        if was_fenced:
            raise Violation(f"{intent.name} writes with {pair} though a newer instance is there")
        yield pause(world)
    return 0


# Clients of transaction version 1


def version_1_producer(
    world: World, ledger: Ledger, transactional_id: str, quota: Quota, dialect: int
) -> Any:
    """What librdkafka does: an epoch per instance, partitions added by request."""
    watch = Watch(world, transactional_id)
    reply = yield from init(
        world, transactional_id, version=4, transaction_timeout_ms=PLAIN_TIMEOUT_MS
    )
    pair = (reply.producer_id, reply.producer_epoch)
    watch.owns(pair)
    sequences: dict[tuple[str, int], int] = {}
    while quota.left > 0:
        quota.left -= 1
        intent = ledger.begin(transactional_id, "plain")
        begin_ms = world.now_ms
        code = 0
        for where in OUTPUTS:
            code = yield from add_partition(world, transactional_id, pair, where, version=dialect)
            if code:
                break
        if not code and world.errs():
            yield from write_unasked(world, transactional_id, pair)
            yield from commit_offsets_unasked(world, transactional_id, pair)
        if not code:
            code = yield from write_records(world, intent, pair, sequences, 11, watch)
        if code in FENCED:
            watch.fenced(code, begin_ms)
            intent.outcome = "aborted"
            return
        if code not in (0, None):
            raise Violation(f"Produce of {intent.name} is told {code}")
        intent.commit_asked = code == 0 and world.random.random() < 0.8
        answer = yield from end(
            world, transactional_id, pair, commit=intent.commit_asked, version=dialect
        )
        world.note(f"{intent.name} ends with {answer.error_code}")
        if answer.error_code in FENCED:
            watch.fenced(answer.error_code, begin_ms)
            return
        if answer.error_code:
            raise Violation(f"EndTxn of {intent.name} is told {answer.error_code}")
        intent.outcome = "committed" if intent.commit_asked else "aborted"
        if world.errs():
            yield from end_again(
                world, transactional_id, pair, answer, commit=intent.commit_asked, version=dialect
            )
        if code is None:
            return  # the last batch may or may not be there: its sequence is not known any more
        yield pause(world)


# Consume, transform, produce (KIP-447)


def copier(world: World, ledger: Ledger, transactional_id: str, quota: Quota, version: int) -> Any:
    """Read the input from the committed offset, write results and the new offset in one transaction."""
    is_v2 = version == 5
    watch = Watch(world, transactional_id)
    reply = yield from init(
        world, transactional_id, version=4, transaction_timeout_ms=PLAIN_TIMEOUT_MS
    )
    pair = (reply.producer_id, reply.producer_epoch)
    watch.owns(pair)
    sequences: dict[tuple[str, int], int] = {}
    while quota.left > 0:
        position = max(0, (yield from read_offset(world)))
        quota.left -= 1
        intent = ledger.begin(transactional_id, "plain")
        intent.source = (position, position + world.random.randint(1, 3))
        begin_ms = world.now_ms
        if is_v2:
            sequences.clear()
        code = yield from copy(world, intent, pair, sequences, version, watch)
        if code in FENCED:
            watch.fenced(code, begin_ms)
            intent.outcome = "aborted"
            return
        if code not in (0, None):
            raise Violation(f"{intent.name} is told {code}")
        intent.commit_asked = code == 0 and world.random.random() < 0.8
        answer = yield from end(
            world, transactional_id, pair, commit=intent.commit_asked, version=version
        )
        world.note(f"{intent.name} {intent.source} ends with {answer.error_code}")
        if answer.error_code in FENCED or (is_v2 and answer.error_code == 48):
            watch.fenced(answer.error_code, begin_ms)
            return
        if answer.error_code:
            raise Violation(f"EndTxn of {intent.name} is told {answer.error_code}")
        intent.outcome = "committed" if intent.commit_asked else "aborted"
        if is_v2:
            pair = (answer.producer_id, answer.producer_epoch)
        elif code is None:
            return
        yield pause(world)


def copy(
    world: World,
    intent: Intent,
    pair: Pair,
    sequences: dict[tuple[str, int], int],
    version: int,
    watch: Watch,
) -> Any:
    """The results and the offset, in any order; 0 or the first code that isn't."""
    assert intent.source is not None
    offset_first = world.random.random() < 0.3
    transactional_id = intent.transactional_id
    for step in ("offset", "records") if offset_first else ("records", "offset"):
        if step == "offset":
            code = yield from commit_offset(
                world, transactional_id, pair, intent.source[1], version=version
            )
        else:
            code = 0
            for where in OUTPUTS if version < 5 else ():
                code = code or (
                    yield from add_partition(world, transactional_id, pair, where, version=3)
                )
            if not code:
                produce_version = 12 if version == 5 else 11
                code = yield from write_records(
                    world, intent, pair, sequences, produce_version, watch
                )
        if code != 0:
            return code
    return 0


# Zombies that have learnt nothing


def stray(world: World) -> Any:
    """Send, with pairs that were fenced long ago, whatever could hurt; nothing may be accepted."""
    random = world.random
    while True:
        yield Sleep(random.choice([10, 50, 200]))
        fenced = [
            (name, pair) for name, served, pair in world.instances if served < world.answered[name]
        ]
        if not fenced:
            continue
        name, pair = random.choice(fenced)
        key, version, request = random.choice(STRAY_REQUESTS)(name, pair)
        reply = yield Send(key, version, request)
        if reply is not None and code_of(key, reply) == 0:
            raise Violation(f"{key.name} v{version} of {name} is accepted with the old pair {pair}")
