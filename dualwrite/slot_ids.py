"""Transactional ids of an app, and which of them an instance may take.

Pure over the `Store` protocol: every claim expects the fence that was read, so that two instances
which want the same id cannot both get it, whatever the store is.
"""

import re
from collections.abc import Callable, Iterable

from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.store import (
    NOT_CLAIMED_YET,
    CannotDecideYet,
    Lease,
    LeasedSlot,
    Store,
    StoreRow,
)

ID_BYTES_MAX = 255

_APP = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)


def check_app(app: str) -> str:
    """Return the app's name, or raise `ConfigurationError`."""
    if not isinstance(app, str) or not _APP.fullmatch(app):
        raise ConfigurationError(f"app name must match {_APP.pattern}: {app!r}")
    return app


def check_id(transactional_id: str) -> str:
    """Return the id, or raise: a column that cut it off would merge two producers' rows."""
    if not isinstance(transactional_id, str) or not transactional_id or "\0" in transactional_id:
        raise ConfigurationError(
            f"a transactional id is a text that is not empty and holds no NUL: {transactional_id!r}"
        )
    try:
        length = len(transactional_id.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ConfigurationError(f"transactional id is not UTF-8: {transactional_id!r}") from error
    if length > ID_BYTES_MAX:
        raise ConfigurationError(f"transactional id has {length} bytes, {ID_BYTES_MAX} at most")
    return transactional_id


def slot_id(app: str, number: int) -> str:
    return f"{app}-{number}"


def resumable_id(transactional_id: str, fence: int) -> str:
    """The id of a slot in Kafka in resume mode, where every claim brings a new one."""
    return f"{transactional_id}.{fence}"


def slot_number(app: str, transactional_id: str) -> int | None:
    """The slot's number if the id is one of this app's, matched in full, never by prefix."""
    match = re.fullmatch(re.escape(app) + r"-([0-9]{1,18})", transactional_id, re.ASCII)
    return int(match[1]) if match else None


def of_app(rows: Iterable[StoreRow], app: str | None) -> list[StoreRow]:
    """The rows of one app, by slot number; every row, by id, without `app`."""
    if app is None:
        return sorted(rows, key=lambda row: row.transactional_id)
    check_app(app)
    numbered = [(slot_number(app, row.transactional_id), row) for row in rows]
    mine = [(number, row) for number, row in numbered if number is not None]
    return [row for _, row in sorted(mine, key=lambda pair: (pair[0], pair[1].transactional_id))]


def is_free(row: StoreRow, is_gone: Callable[[str], bool]) -> bool:
    """True if the row may be taken without asking its owner.

    `is_gone` tells what the store cannot know: the owner's process is gone from this very host,
    or the owner is an earlier run of the caller's own instance name.
    """
    return row.lease is not Lease.LIVE or is_gone(row.owner)


def _may_take(row: StoreRow, owner: str, held: set[str], is_gone: Callable[[str], bool]) -> bool:
    """True for a free row, and for one that names `owner`, who does not hold it.

    The latter is of a claim whose answer was lost, or that was made when the next one failed.
    While its owner lives, nobody else would end what the id has open.
    """
    if row.transactional_id in held:
        return False
    return row.owner == owner or is_free(row, is_gone)


def lease_slots(
    store: Store,
    app: str,
    owner: str,
    count: int,
    *,
    is_gone: Callable[[str], bool],
    held: Iterable[str] = (),
) -> list[LeasedSlot]:
    """Claim the `count` free ids with the lowest numbers for `owner`; make new ones if needed.

    An id whose row is locked is left alone, and so is every id in `held`.
    """
    rows = store.rows(app)
    skip = set(held)
    leased: list[LeasedSlot] = []
    for row in rows:
        if len(leased) == count:
            return leased
        if _may_take(row, owner, skip, is_gone):
            leased += _try_claim(store, row.transactional_id, row.fence, owner)

    taken = {slot_number(app, row.transactional_id) for row in rows}
    number = 0
    while len(leased) < count:
        if number not in taken:
            leased += _try_new(store, slot_id(app, number), owner)
        number += 1
    return leased


def take_over(
    store: Store,
    app: str,
    owner: str,
    *,
    is_gone: Callable[[str], bool],
    held: Iterable[str] = (),
) -> list[LeasedSlot]:
    """Claim every id of the app that nobody alive owns, for recovery; a locked one is left.

    When a pool shrinks, the ids above it may hold open transactions that would pin the readers
    of their partitions for ever, so the sweep goes by rows, not by the pool's size.
    """
    skip = set(held)
    claimed: list[LeasedSlot] = []
    for row in store.rows(app):
        if _may_take(row, owner, skip, is_gone):
            claimed += _try_claim(store, row.transactional_id, row.fence, owner)
    return claimed


def _try_claim(store: Store, transactional_id: str, fence: int, owner: str) -> list[LeasedSlot]:
    try:
        return [LeasedSlot(transactional_id, store.claim(transactional_id, fence, owner=owner))]
    except (Fenced, CannotDecideYet):
        # Somebody else was faster, or an open transaction still holds the row.
        return []


def _try_new(store: Store, transactional_id: str, owner: str) -> list[LeasedSlot]:
    try:
        claim = store.claim(transactional_id, NOT_CLAIMED_YET, owner=owner)
    except Fenced:
        # Another instance made the same id a moment ago. A lock, in contrast, is not skipped:
        # the next number would wait for the same lock, without end.
        return []
    return [LeasedSlot(transactional_id, claim)]
