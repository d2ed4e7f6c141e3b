"""`RocksDbStore`: data and state in one synced WriteBatch.

RocksDB lets one process open a database, so its lock is the lease: whoever has it open owns every
id, and a second process cannot take over. Several writers inside the process are kept apart by
fences, checked and written under one lock per path.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

try:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions
except ModuleNotFoundError as error:
    missing = "RocksDbStore needs the extra: pip install 'dualwrite[rocksdb]'"
    raise ModuleNotFoundError(missing, name=error.name) from error

from dualwrite.adapters.awaitable import AwaitableStore, in_thread
from dualwrite.adapters.buffered import BufferedTransaction
from dualwrite.adapters.rows import KeptRow, decode_heuristic, encode_heuristic
from dualwrite.content import as_state
from dualwrite.errors import ConfigurationError, Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import check_id, of_app
from dualwrite.store import (
    Claim,
    CommitUnknown,
    Durability,
    DurabilityCheck,
    Heuristic,
    StoreRow,
    StoreUnavailable,
    Verdict,
)

COLUMN_FAMILY = "kafka_transaction_state"

_ROW, _HEURISTIC, _OUTBOX = b"row/", b"heuristic/", b"outbox/"


class _Place:
    """What all stores on one path share: the lock, and the leases of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lease_until: dict[str, float] = {}


_places: dict[str, _Place] = {}
_places_lock = threading.Lock()


def _place_of(path: str) -> _Place:
    with _places_lock:
        return _places.setdefault(os.path.realpath(path), _Place())


class RocksDbTransaction(BufferedTransaction):
    """A WriteBatch that becomes durable together with the state, or not at all."""

    resource_name = "batch"

    def __init__(self, store: "RocksDbStore") -> None:
        self._store = store
        self.batch = WriteBatch(raw_mode=store.is_raw)
        super().__init__(self.batch)

    def _write(self) -> None:
        self._store.write(self)


class RocksDbStore:
    """Remembers prepared transactions in a column family beside the data.

    With a path the store opens the database itself; an `Rdict` is used as it is and stays open.
    """

    def __init__(self, path_or_rdict: "str | os.PathLike[str] | Rdict") -> None:
        self._is_ours = isinstance(path_or_rdict, str | os.PathLike)
        if not (self._is_ours and path_or_rdict) and not isinstance(path_or_rdict, Rdict):
            raise ConfigurationError(
                f"RocksDbStore takes a path or an Rdict, not {path_or_rdict!r}"
            )
        given: Any = path_or_rdict
        self._db = _opened(given) if self._is_ours else given
        self.is_raw = _is_raw(self._db)
        self._place = _place_of(self._db.path())
        with self._place.lock:
            self._family: Any = _family(self._db, self.is_raw)

    @property
    def db(self) -> Any:
        """The `Rdict`, for reading the data."""
        return self._db

    def claim(self, id: str, expect: int | None = None, *, owner: str | None = None) -> Claim:
        check_id(id)
        with self._place.lock:
            row = self._row(id) or KeptRow(transactional_id=id)
            if expect is not None and row.fence != expect:
                raise Fenced(f"{id} has fence {row.fence}, not {expect}")
            claimed = row.claimed(owner)
            self._put({_row_key(id): claimed.encode()})
            return claimed.claim

    def begin(self, handle: object | None = None) -> RocksDbTransaction:
        if handle is None:
            return RocksDbTransaction(self)
        raise ConfigurationError(
            "a RocksDB transaction is the store's own WriteBatch (tx.batch); it cannot take part in"
            f" a {type(handle).__name__}"
        )

    def remember(self, handle: object, id: str, state: PreparedTxnState | str, fence: int) -> None:
        transaction = _ours(handle)
        transaction.remembered[check_id(id)] = (as_state(state), fence)
        with self._place.lock:
            self._require(id, fence)

    def write(self, transaction: RocksDbTransaction) -> None:
        """Check every fence and write the batch, as one step towards all other stores."""
        with self._place.lock:
            rows = {
                transactional_id: self._require(transactional_id, fence).remembering(state)
                for transactional_id, (state, fence) in transaction.remembered.items()
            }
            family = self._handle()
            for transactional_id, (state, messages) in transaction.kept.items():
                for key in self._keys(_outbox_prefix(transactional_id)):
                    transaction.batch.delete(key, family)
                for position, message in enumerate(messages):
                    key = _outbox_key(transactional_id, state, position)
                    transaction.batch.put(key, message, family)
            for transactional_id, row in rows.items():
                transaction.batch.put(_row_key(transactional_id), row.encode(), family)
            try:
                self._db.write(transaction.batch, _synced())
            except Exception as error:
                # The batch may lie in the log already, and be replayed at the next opening.
                raise CommitUnknown(f"the write failed half way: {error}") from error

    def recall(self, id: str, fence: int) -> PreparedTxnState:
        check_id(id)
        with self._place.lock:
            return self._require(id, fence).state

    def release(self, id: str, fence: int) -> bool:
        return self._change(check_id(id), fence, owner="")

    def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None:
        if not self._change(transactional_id, fence, cluster_id=cluster_id):
            raise Fenced(f"{transactional_id} no longer has fence {fence}")

    def row(self, transactional_id: str) -> StoreRow | None:
        with self._place.lock:
            row = self._row(transactional_id)
            return None if row is None else row.store_row(self._is_live(row.owner))

    def rows(self, app: str | None = None) -> list[StoreRow]:
        with self._place.lock:
            kept = [KeptRow.decode(data) for _, data in self._items(_ROW)]
            return of_app([row.store_row(self._is_live(row.owner)) for row in kept], app)

    def lease(self, owner: str, seconds: float) -> None:
        with self._place.lock:
            self._place.lease_until[owner] = time.monotonic() + seconds

    def renew(self, owner: str, seconds: float) -> bool:
        with self._place.lock:
            if not self._is_live(owner):
                return False
            self.lease(owner, seconds)
            return True

    def end_lease(self, owner: str) -> None:
        with self._place.lock:
            self._place.lease_until.pop(owner, None)

    def record_heuristic(self, heuristic: Heuristic) -> None:
        with self._place.lock:
            number = sum(1 for _ in self._keys(_HEURISTIC))
            self._put({_HEURISTIC + b"%012d" % number: encode_heuristic(heuristic)})

    def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]:
        with self._place.lock:
            found = [decode_heuristic(data) for _, data in self._items(_HEURISTIC)]
        return [h for h in found if transactional_id in (None, h.transactional_id)]

    def keep_messages(
        self,
        handle: object,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None:
        _ours(handle).kept[check_id(transactional_id)] = (state, tuple(messages))

    def kept_messages(self, transactional_id: str, state: PreparedTxnState) -> list[bytes]:
        with self._place.lock:
            return [data for _, data in self._items(_outbox_prefix(transactional_id, state))]

    def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None:
        with self._place.lock:
            batch = WriteBatch(raw_mode=self.is_raw)
            family = self._handle()
            for key in self._keys(_outbox_prefix(transactional_id, state)):
                batch.delete(key, family)
            self._db.write(batch, _synced())

    def durability(self) -> Durability:
        return Durability((DurabilityCheck("WriteOptions.sync", "true", "true", Verdict.FORCED),))

    def aio(self) -> AwaitableStore:
        return AwaitableStore(self, in_thread)

    def close(self) -> None:
        if self._family is None:
            return
        self._family.close()
        self._family = None
        if self._is_ours:
            self._db.close()

    def _open_family(self) -> Any:
        if self._family is None:
            raise StoreUnavailable("this RocksDbStore is closed")
        return self._family

    def _handle(self) -> Any:
        try:
            return self._db.get_column_family_handle(COLUMN_FAMILY)
        except Exception as error:  # its owner has closed it
            raise StoreUnavailable(f"RocksDB cannot be written: {error}") from error

    def _is_live(self, owner: str) -> bool:
        return self._place.lease_until.get(owner, 0.0) > time.monotonic()

    def _row(self, transactional_id: str) -> KeptRow | None:
        data = self._open_family().get(_row_key(transactional_id))
        return None if data is None else KeptRow.decode(data)

    def _require(self, transactional_id: str, fence: int) -> KeptRow:
        row = self._row(transactional_id)
        if row is None or row.fence != fence:
            raise Fenced(f"{transactional_id} no longer has fence {fence}")
        return row

    def _change(self, transactional_id: str, fence: int, **values: object) -> bool:
        with self._place.lock:
            row = self._row(transactional_id)
            if row is None or row.fence != fence:
                return False
            self._put({_row_key(transactional_id): row.changed(**values).encode()})
            return True

    def _put(self, entries: dict[bytes, bytes]) -> None:
        batch = WriteBatch(raw_mode=self.is_raw)
        family = self._handle()
        for key, value in entries.items():
            batch.put(key, value, family)
        try:
            self._db.write(batch, _synced())
        except Exception as error:
            raise StoreUnavailable(f"RocksDB refused a write: {error}") from error

    def _items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._open_family().items(from_key=prefix):
            if not key.startswith(prefix):
                return
            yield key, value

    def _keys(self, prefix: bytes) -> Iterator[bytes]:
        return (key for key, _ in self._items(prefix))


def _opened(path: Any) -> Any:
    try:
        return Rdict(os.fspath(path))
    except Exception as error:
        # Another process has it open: that process owns every id of this store.
        raise StoreUnavailable(f"RocksDB at {os.fspath(path)} cannot be opened: {error}") from error


def _is_raw(db: Any) -> bool:
    """A raw database refuses a key that is not bytes."""
    try:
        db.get("is it raw?")
    except (KeyError, TypeError):
        return True
    return False


def _family(db: Any, is_raw: bool) -> Any:
    if COLUMN_FAMILY in Rdict.list_cf(db.path()):
        return db.get_column_family(COLUMN_FAMILY)
    return db.create_column_family(COLUMN_FAMILY, Options(raw_mode=is_raw))


def _synced() -> Any:
    options = WriteOptions()
    options.sync = True  # the default survives a crash of the process, not of the machine
    options.disable_wal = False
    return options


def _ours(handle: object) -> RocksDbTransaction:
    if not isinstance(handle, RocksDbTransaction):
        raise ConfigurationError(
            f"RocksDB remembers only in its own transactions, not in a {type(handle).__name__}"
        )
    handle.check_open()
    return handle


def _row_key(transactional_id: str) -> bytes:
    return _ROW + transactional_id.encode()


def _outbox_prefix(transactional_id: str, state: PreparedTxnState | None = None) -> bytes:
    """An id cannot hold NUL, so no id's prefix is the beginning of another's."""
    prefix = _OUTBOX + transactional_id.encode() + b"\0"
    return prefix if state is None else prefix + str(state).encode() + b"\0"


def _outbox_key(transactional_id: str, state: PreparedTxnState, position: int) -> bytes:
    return _outbox_prefix(transactional_id, state) + b"%012d" % position
