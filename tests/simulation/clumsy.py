"""Clients that ask for what they must not get: each wish has its code, and none leaves anything behind."""

from collections.abc import Callable
from typing import Any

from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from tests.simulation.admin import describe, list_ids, scrape
from tests.simulation.requests import (
    FENCED,
    RETRIABLE,
    adding,
    code_of,
    end,
    produce,
    producing,
    put_offset,
)
from tests.simulation.world import WALL_START_MS, Send, Sleep, Violation, World

NOBODY = "nobody"
PAIR = (77_777, 3)
UNASKED = ("input", 0)
INVALID_TXN_STATE = int(ErrorCode.INVALID_TXN_STATE)

Pair = tuple[int, int]
Wish = tuple[ApiKey, int, Any, ErrorCode]


def _wrong_init(code: ErrorCode, name: str = NOBODY, **fields: Any) -> Wish:
    request = InitProducerIdRequest(
        transactional_id=name, **{"transaction_timeout_ms": 60_000, **fields}
    )
    return ApiKey.INIT_PRODUCER_ID, 6, request, code


def _wrong_end(version: int, code: ErrorCode, pair: Pair = PAIR) -> Wish:
    request = EndTxnRequest(
        transactional_id=NOBODY, producer_id=pair[0], producer_epoch=pair[1], committed=True
    )
    return ApiKey.END_TXN, version, request, code


def _wrong_produce(version: int) -> Wish:
    request = producing(NOBODY, PAIR, ("orders", 0), 0, [b"nobody/0"], WALL_START_MS)
    return ApiKey.PRODUCE, version, request, ErrorCode.INVALID_PRODUCER_ID_MAPPING


WRONG: tuple[Callable[[], Wish], ...] = (
    lambda: _wrong_init(ErrorCode.INVALID_REQUEST, name=""),
    lambda: _wrong_init(ErrorCode.INVALID_REQUEST, producer_id=7),
    lambda: _wrong_init(ErrorCode.INVALID_REQUEST, producer_epoch=7),
    lambda: _wrong_init(ErrorCode.INVALID_TRANSACTION_TIMEOUT, transaction_timeout_ms=0),
    lambda: _wrong_init(ErrorCode.INVALID_TRANSACTION_TIMEOUT, transaction_timeout_ms=2**31 - 1),
    lambda: _wrong_end(3, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    lambda: _wrong_end(5, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    lambda: _wrong_end(5, ErrorCode.INVALID_REQUEST, pair=(-1, -1)),
    lambda: (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        adding(NOBODY, PAIR, ("orders", 0)),
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ),
    lambda: (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        adding("", PAIR, ("orders", 0)),
        ErrorCode.INVALID_REQUEST,
    ),
    lambda: _wrong_produce(11),
    lambda: _wrong_produce(12),
)


def bystander(world: World, names: set[str]) -> Any:
    """Wrong requests, producers without transactions, and an admin's look, again and again."""
    random = world.random
    taken: set[int] = set()
    while True:
        yield Sleep(random.choice([10, 50, 200]))
        match random.randrange(6):
            case 0:
                yield from take_producer_id(world, taken)
            case 1:
                yield from list_ids(world, names)
            case 2:
                yield from describe(world)
            case 3 if world.node is not None:
                scrape(world)
            case _:
                key, version, request, expected = random.choice(WRONG)()
                reply = yield Send(key, version, request)
                if reply is not None and code_of(key, reply) not in {expected, *RETRIABLE}:
                    said = f"{key.name} v{version} is told {code_of(key, reply)}, not {expected}"
                    raise Violation(f"{said}: {request}")


def take_producer_id(world: World, taken: set[int]) -> Any:
    """InitProducerId of an idempotent producer: an id is given away once, crashes or not."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    reply = yield Send(ApiKey.INIT_PRODUCER_ID, 6, request)
    if reply is None or reply.error_code:
        return
    if reply.producer_id in taken | {producer_id for producer_id, _ in world.given}:
        raise Violation(f"producer id {reply.producer_id} is given away twice")
    taken.add(reply.producer_id)


# Steps in which a client that is otherwise healthy errs


def write_into_kept(world: World, transactional_id: str, pair: Pair) -> Any:
    """A kept transaction can be completed and nothing else."""
    code = yield from produce(
        world, transactional_id, pair, ("orders", 0), 0, [b"kept/0"], version=12
    )
    if code == 0:
        raise Violation(f"{transactional_id} writes into a transaction that is kept")


def write_unasked(world: World, transactional_id: str, pair: Pair) -> Any:
    """Under version 1 a partition must be added before it is written (KIP-890)."""
    version = world.random.choice([10, 11])  # up to 10 it knows no TRANSACTION_ABORTABLE
    code = yield from produce(
        world, transactional_id, pair, UNASKED, 0, [b"unasked/0"], version=version
    )
    refusal = ErrorCode.TRANSACTION_ABORTABLE if version == 11 else ErrorCode.INVALID_TXN_STATE
    if code not in {refusal, None, *FENCED}:
        raise Violation(f"{transactional_id} writes where it has not added: {code}")


def commit_offsets_unasked(world: World, transactional_id: str, pair: Pair) -> Any:
    """And a group before its offsets are committed."""
    version = world.random.choice([0, 3, 4])  # up to 3 it knows no TRANSACTION_ABORTABLE
    code = yield from put_offset(world, transactional_id, pair, 0, version=version)
    refusal = ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE
    if code not in {refusal, *FENCED}:
        raise Violation(f"{transactional_id} commits offsets that it has not added: {code}")


def end_by_version_1(world: World, transactional_id: str, pair: Pair) -> Any:
    """A two-phase transaction is not ended by a request that moves no epoch."""
    commit = world.random.random() < 0.5
    answer = yield from end(world, transactional_id, pair, commit=commit, version=3)
    if answer.error_code not in {INVALID_TXN_STATE, *FENCED}:
        raise Violation(f"EndTxn v3 of two-phase {pair} is told {answer.error_code}")


def commit_nothing(world: World, transactional_id: str, pair: Pair) -> Any:
    """Nothing is written: there is no transaction to commit. The pair must not be used any more."""
    answer = yield from end(world, transactional_id, pair, commit=True, version=5)
    if answer.error_code not in {INVALID_TXN_STATE, *FENCED}:
        raise Violation(f"commit of nothing by {pair} is told {answer.error_code}")


def end_again(
    world: World, transactional_id: str, pair: Pair, answer: Any, *, commit: bool, version: int
) -> Any:
    """The same end once more gets the same answer; the other one does not become true."""
    for again in (commit, not commit):
        repeated = yield from end(world, transactional_id, pair, commit=again, version=version)
        code = repeated.error_code
        if code in FENCED:
            return
        if code != (0 if again == commit else INVALID_TXN_STATE):
            raise Violation(f"EndTxn of {pair} again, commit={again}, is told {code}")
        if code == 0 and version >= 5 and _next(repeated) != _next(answer):
            raise Violation(f"EndTxn of {pair} again gives {_next(repeated)}")


def _next(answer: Any) -> Pair:
    return answer.producer_id, answer.producer_epoch
