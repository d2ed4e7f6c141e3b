"""Clients beside those whose data is checked: all that they write is aborted, and each answer is known.

Their requests arrive in order and once, so that a code that is not expected is the broker's error.
"""

from collections.abc import Callable
from typing import Any

from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_transactions import DescribeTransactionsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.simulation.requests import FENCED, RETRIABLE, adding, attempts, code_of, producing
from tests.simulation.world import (
    IDS_MAX,
    TWO_PHASE_MAX,
    WALL_START_MS,
    Send,
    Sleep,
    Violation,
    World,
)

GREEDY = "User:greedy"
WHERE = ("input", 0)
PLAIN_MS = 60_000
LATE_MS = 1_500

Pair = tuple[int, int]


class Neighbour:
    """One client's conversation: a request until it has a definite answer, which must be as expected."""

    def __init__(self, world: World, principal: str = "User:simulated") -> None:
        self._world = world
        self._principal = principal

    def ask(self, key: ApiKey, version: int, request: Any) -> Any:
        for _ in attempts(self._world):
            reply = yield Send(key, version, request, principal=self._principal)
            if reply is not None and code_of(key, reply) not in RETRIABLE:
                return reply
            yield Sleep(20)
        raise Violation(f"{key.name} never ends: {request}")

    def expect(self, key: ApiKey, version: int, request: Any, *codes: int) -> Any:
        reply = yield from self.ask(key, version, request)
        if code_of(key, reply) not in codes:
            raise Violation(f"{key.name} v{version} is told {code_of(key, reply)}: {request}")
        return reply

    def init(self, name: str, *codes: int, version: int = 6, **fields: Any) -> Any:
        request = InitProducerIdRequest(
            transactional_id=name, **{"transaction_timeout_ms": PLAIN_MS, **fields}
        )
        reply = yield from self.expect(ApiKey.INIT_PRODUCER_ID, version, request, *codes)
        return reply.producer_id, reply.producer_epoch

    def write(self, name: str, pair: Pair, version: int, *codes: int) -> Any:
        stamp = WALL_START_MS + self._world.now_ms
        request = producing(name, pair, WHERE, 0, [name.encode()], stamp)
        reply = yield from self.expect(ApiKey.PRODUCE, version, request, *codes)
        return code_of(ApiKey.PRODUCE, reply)

    def abort(self, name: str, pair: Pair, version: int, *codes: int) -> Any:
        request = EndTxnRequest(
            transactional_id=name, producer_id=pair[0], producer_epoch=pair[1], committed=False
        )
        reply = yield from self.expect(ApiKey.END_TXN, version, request, *codes)
        return reply.error_code


def greedy(world: World) -> Any:
    """A principal that makes as many ids, and opens as many two-phase transactions, as it may."""
    me = Neighbour(world, GREEDY)
    names = [f"greedy-{number}" for number in range(IDS_MAX)]
    pairs = []
    for number, name in enumerate(names):
        is_two_phase = number <= TWO_PHASE_MAX
        pairs.append((yield from me.init(name, 0, enable_2pc=is_two_phase)))
    yield from me.init("greedy-more", ErrorCode.POLICY_VIOLATION)
    for name, pair in zip(names[:TWO_PHASE_MAX], pairs, strict=False):
        yield from me.write(name, pair, 12, 0)
    further, plain = TWO_PHASE_MAX, TWO_PHASE_MAX + 1
    yield from me.write(names[further], pairs[further], 12, ErrorCode.TRANSACTION_ABORTABLE)
    begin_ms = world.now_ms
    yield from me.write(names[plain], pairs[plain], 12, 0)
    if world.now_ms - begin_ms < PLAIN_MS // 2:
        code = ErrorCode.POLICY_VIOLATION
        yield from me.init(names[plain], code, enable_2pc=True, keep_prepared_txn=True)
    marker = WritableTxnMarker(
        producer_id=pairs[0][0],
        producer_epoch=pairs[0][1],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=WHERE[0], partition_indexes=[WHERE[1]])],
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    yield from me.expect(ApiKey.WRITE_TXN_MARKERS, 1, request, ErrorCode.INVALID_TXN_STATE)
    for name, pair in zip(names, pairs, strict=True):
        yield from me.abort(name, pair, 5, *({0} if name != names[plain] else {0, *FENCED}))


def late(world: World) -> Any:
    """A producer of version 1 whose second transaction outlives its time, and the first one's alarm."""
    me = Neighbour(world)
    pair = yield from me.init("late", 0, version=4, transaction_timeout_ms=LATE_MS)
    adding_it = adding("late", pair, WHERE)
    for sleep_ms in (LATE_MS // 2, 3 * LATE_MS):
        added = yield from me.expect(ApiKey.ADD_PARTITIONS_TO_TXN, 1, adding_it, 0, 47, 49)
        if code_of(ApiKey.ADD_PARTITIONS_TO_TXN, added):
            break
        yield Sleep(sleep_ms)
        # Up to version 1 it knows no PRODUCER_FENCED (KIP-588); 49 when the epochs are used up.
        if (yield from me.abort("late", pair, 1, 0, 47, 49)):
            break
    else:
        return
    request = DescribeTransactionsRequest(transactional_ids=["late"])
    (state,) = (yield from me.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)).transaction_states
    if (state.last_outcome, state.last_cause) != ("abort", "timeout"):
        raise Violation(f"late was fenced by its timeout and is shown as {state}")


def upstart(world: World) -> Any:
    """What a broker refuses whose feature level or whose admin does not allow it."""
    me = Neighbour(world)
    pair = yield from me.init("upstart", 0, version=4)
    if not world.allows_two_phase:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        yield from me.init("upstart", code, enable_2pc=True)
        return
    yield from me.init("upstart", ErrorCode.UNSUPPORTED_VERSION, enable_2pc=True)
    yield from me.init("upstart", ErrorCode.UNSUPPORTED_VERSION, keep_prepared_txn=True)
    if world.transaction_version == 0:
        yield from me.write("upstart", pair, 12, ErrorCode.UNSUPPORTED_VERSION)
        yield from me.abort("upstart", pair, 5, ErrorCode.UNSUPPORTED_VERSION)


def neighbours(world: World) -> dict[str, Callable[[World], Any]]:
    """Those of a history whose clients err, by name."""
    return {"upstart": upstart} if world.is_old else {"greedy": greedy, "late": late}
