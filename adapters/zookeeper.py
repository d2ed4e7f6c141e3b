"""`ZooKeeperStore`: data and state in one version-checked multi.

The data must be written by the same multi as the state. Where the data lives elsewhere, ZooKeeper
is only a log of decisions, without atomicity with that data: use `ZooKeeperDecisionLog`, whose
name says so.

A claim reads the state node and sets it with the version that was read, again and again until
nobody came in between. A multi carries the version that its writer knows, so every multi sent
before a claim fails after it, also one whose answer was lost: the claim settles its outcome.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

try:
    from kazoo.client import KazooClient
    from kazoo.exceptions import (
        BadVersionError,
        KazooException,
        NodeExistsError,
        NoNodeError,
        RolledBackError,
        RuntimeInconsistency,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.security import CREATOR_ALL_ACL
except ModuleNotFoundError as error:
    missing = "ZooKeeperStore needs the extra: pip install 'dualwrite[zookeeper]'"
    raise ModuleNotFoundError(missing, name=error.name) from error

from dualwrite.adapters.awaitable import AwaitableStore, in_thread
from dualwrite.adapters.buffered import BufferedTransaction
from dualwrite.adapters.claims import settled_claim
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

log = logging.getLogger("dualwrite.adapters.zookeeper")

ROOT = "/kafka_transaction_state"
MULTI_BYTES_MAX = 0xFFFFF
"""jute.maxbuffer of an unconfigured server. A larger request drops the connection, which looks
like a lost answer."""
OPERATION_BYTES = 64
START_SECONDS = 15.0

_ROOT = re.compile(r"(/[A-Za-z0-9_.-]+)+", re.ASCII)


class Multi:
    """Operations of the application's own, to be done together with the state or not at all."""

    def __init__(self, client: KazooClient) -> None:
        self._request = client.transaction()

    def create(self, path: str, value: bytes = b"", **options: Any) -> None:
        self._request.create(path, value, **options)

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._request.set_data(path, value, version)

    def delete(self, path: str, version: int = -1) -> None:
        self._request.delete(path, version)

    def check(self, path: str, version: int) -> None:
        self._request.check(path, version)

    @property
    def operations(self) -> list[Any]:
        return list(self._request.operations)


class ZooKeeperTransaction(BufferedTransaction):
    """A multi under construction. Nothing is sent before `commit`."""

    resource_name = "multi"

    def __init__(self, store: "ZooKeeperStore", multi: Multi) -> None:
        self._store = store
        self.multi = multi
        super().__init__(multi)

    def _write(self) -> None:
        self._store.send(self)


class ZooKeeperStore:
    """Remembers prepared transactions in ZooKeeper, in the multi that writes the data.

    `client_or_hosts` is a `KazooClient`, started or not, or its hosts. A lease is an ephemeral node
    and lasts as long as the session, so the session's timeout is what `lease_seconds` should be.
    Nodes belong to the client's own identity if it has one (`auth_data`), or get `acl`. A client that is
    not started yet gets `start_seconds` for its first answer.
    """

    def __init__(
        self,
        client_or_hosts: "KazooClient | str",
        root: str = ROOT,
        *,
        acl: Sequence[Any] | None = None,
        multi_bytes_max: int = MULTI_BYTES_MAX,
        start_seconds: float | None = None,
    ) -> None:
        if not isinstance(root, str) or not _ROOT.fullmatch(root) or "/." in root:
            raise ConfigurationError(f"not a path for a root node: {root!r}")
        self._is_ours = isinstance(client_or_hosts, str)
        self._client = _client_of(client_or_hosts)
        self._root = root
        has_identity = bool(getattr(self._client, "auth_data", None))
        self._acl = list(acl) if acl is not None else CREATOR_ALL_ACL if has_identity else None
        self._multi_bytes_max = multi_bytes_max
        if not self._client.connected:
            try:
                self._client.start(
                    timeout=START_SECONDS if start_seconds is None else start_seconds
                )
            except KazooTimeoutError as error:
                raise StoreUnavailable(f"ZooKeeper did not answer: {error}") from error
        if self._acl is None:
            log.warning("nodes below %s are open to everybody: give an acl or auth_data", root)
        with self._asking("making the root nodes"):
            for name in ("state", "lease", "heuristics", "outbox"):
                self._ensure(f"{root}/{name}")

    @property
    def client(self) -> Any:
        """The `KazooClient`, for reading the data."""
        return self._client

    # Claims and states ------------------------------------------------------------------------

    def claim(self, id: str, expect: int | None = None, *, owner: str | None = None) -> Claim:
        check_id(id)
        return settled_claim(
            lambda: self._claim(id, expect, owner),
            lambda: self.row(id),
            expect,
            owner,
        )

    def _claim(self, transactional_id: str, expect: int | None, owner: str | None) -> Claim:
        path = self._state_path(transactional_id)
        with self._asking(f"claiming {transactional_id}"):
            self._client.sync(self._root)
            while True:
                row, version = self._read(transactional_id)
                if expect is not None and row.fence != expect:
                    raise Fenced(f"{transactional_id} has fence {row.fence}, not {expect}")
                claimed = row.claimed(owner)
                try:
                    if version is None:
                        self._client.create(path, claimed.encode(), acl=self._acl)
                    else:
                        self._client.set(path, claimed.encode(), version=version)
                except (BadVersionError, NodeExistsError, NoNodeError):
                    continue  # somebody came in between: look again
                return claimed.claim

    def begin(self, handle: object | None = None) -> ZooKeeperTransaction:
        if handle is None:
            return ZooKeeperTransaction(self, Multi(self._client))
        raise ConfigurationError(
            "a ZooKeeper transaction is the store's own multi (tx.multi); it cannot be atomic with"
            f" a {type(handle).__name__}"
        )

    def remember(self, handle: object, id: str, state: PreparedTxnState | str, fence: int) -> None:
        transaction = _ours(handle)
        transaction.remembered[check_id(id)] = (as_state(state), fence)

    def send(self, transaction: ZooKeeperTransaction) -> None:
        """Send the multi and look at every result: kazoo returns failures, it does not raise."""
        request = self._client.transaction()
        request.operations.extend(transaction.multi.operations)
        with self._asking("preparing a multi"):
            for transactional_id, (state, fence) in transaction.remembered.items():
                row, version = self._require(transactional_id, fence)
                path = self._state_path(transactional_id)
                request.set_data(path, row.remembering(state).encode(), version)
            for transactional_id, (state, messages) in transaction.kept.items():
                self._add_kept(request, transactional_id, state, messages)
        self._check_size(request.operations)
        first_of_ours = len(transaction.multi.operations)
        try:
            results = request.commit()
        except KazooException as error:
            raise CommitUnknown(f"the answer to the multi was lost: {error!r}") from error
        except BaseException as error:
            raise CommitUnknown(f"the multi was sent, and nobody waited: {error!r}") from error
        _inspect(results, first_of_ours)

    def recall(self, id: str, fence: int) -> PreparedTxnState:
        check_id(id)
        with self._asking(f"recalling {id}"):
            self._client.sync(self._root)
            return self._require(id, fence)[0].state

    def release(self, id: str, fence: int) -> bool:
        return self._change(check_id(id), fence, owner="")

    def bind_cluster(self, transactional_id: str, fence: int, cluster_id: str) -> None:
        if not self._change(transactional_id, fence, cluster_id=cluster_id):
            raise Fenced(f"{transactional_id} no longer has fence {fence}")

    def row(self, transactional_id: str) -> StoreRow | None:
        with self._asking(f"reading {transactional_id}"):
            self._client.sync(self._root)
            row, version = self._read(transactional_id)
            return None if version is None else row.store_row(self._is_live(row.owner))

    def rows(self, app: str | None = None) -> list[StoreRow]:
        with self._asking("reading the rows"):
            self._client.sync(self._root)
            live = set(self._client.get_children(f"{self._root}/lease"))
            found = []
            for name in self._client.get_children(f"{self._root}/state"):
                row, version = self._read(unquote(name))
                if version is not None:
                    found.append(row.store_row(_encoded(row.owner) in live))
            return of_app(found, app)

    # Leases -----------------------------------------------------------------------------------

    def lease(self, owner: str, seconds: float) -> None:
        """Begin the lease; it lasts as long as the session, whatever `seconds` says."""
        with self._asking("leasing"):
            try:
                self._client.create(self._lease_path(owner), ephemeral=True, acl=self._acl)
            except NodeExistsError:
                if not self.renew(owner, seconds):
                    # An earlier session of the same owner has not run out yet.
                    self._client.delete(self._lease_path(owner))
                    self._client.create(self._lease_path(owner), ephemeral=True, acl=self._acl)

    def renew(self, owner: str, seconds: float) -> bool:
        with self._asking("renewing the lease"):
            stat = self._client.exists(self._lease_path(owner))
            return stat is not None and stat.ephemeralOwner == self._client.client_id[0]

    def end_lease(self, owner: str) -> None:
        with self._asking("ending the lease"):
            try:
                self._client.delete(self._lease_path(owner))
            except NoNodeError:
                return

    # Heuristics and kept messages -------------------------------------------------------------

    def record_heuristic(self, heuristic: Heuristic) -> None:
        with self._asking("recording a forced end"):
            path = f"{self._root}/heuristics/forced-"
            self._client.create(path, encode_heuristic(heuristic), sequence=True, acl=self._acl)

    def heuristics(self, transactional_id: str | None = None) -> list[Heuristic]:
        with self._asking("reading forced ends"):
            folder = f"{self._root}/heuristics"
            names = sorted(self._client.get_children(folder))
            found = [decode_heuristic(self._client.get(f"{folder}/{name}")[0]) for name in names]
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
        with self._asking(f"reading kept messages of {transactional_id}"):
            found = self._outbox(transactional_id)
        return _unpacked(found[0], state) if found is not None else []

    def forget_messages(self, transactional_id: str, state: PreparedTxnState) -> None:
        with self._asking(f"forgetting messages of {transactional_id}"):
            found = self._outbox(transactional_id)
            if found is None or not _is_of(found[0], state):
                return
            try:
                self._client.delete(self._outbox_path(transactional_id), version=found[1])
            except (BadVersionError, NoNodeError):
                return  # a newer transaction has replaced them

    # Life -------------------------------------------------------------------------------------

    def durability(self) -> Durability:
        return Durability(
            (
                DurabilityCheck(
                    "forceSync",
                    "not visible to a client",
                    "yes (the server's default), see zookeeper.forceSync",
                    Verdict.UNKNOWN,
                ),
            )
        )

    def aio(self) -> AwaitableStore:
        return AwaitableStore(self, in_thread)

    def close(self) -> None:
        if self._is_ours and self._client.connected:
            self._client.stop()
            self._client.close()

    def _read(self, transactional_id: str) -> tuple[KeptRow, int | None]:
        """The row and its node's version; an empty row and None where there is no node."""
        try:
            data, stat = self._client.get(self._state_path(transactional_id))
        except NoNodeError:
            return KeptRow(transactional_id=transactional_id), None
        return KeptRow.decode(data), stat.version

    def _require(self, transactional_id: str, fence: int) -> tuple[KeptRow, int]:
        row, version = self._read(transactional_id)
        if version is None or row.fence != fence:
            raise Fenced(f"{transactional_id} no longer has fence {fence}")
        return row, version

    def _change(self, transactional_id: str, fence: int, **values: object) -> bool:
        with self._asking(f"changing {transactional_id}"):
            row, version = self._read(transactional_id)
            if version is None or row.fence != fence:
                return False
            data = row.changed(**values).encode()
            try:
                self._client.set(self._state_path(transactional_id), data, version=version)
            except BadVersionError:
                return False
            return True

    def _is_live(self, owner: str) -> bool:
        return bool(owner) and self._client.exists(self._lease_path(owner)) is not None

    def _add_kept(
        self,
        request: Any,
        transactional_id: str,
        state: PreparedTxnState,
        messages: Sequence[bytes],
    ) -> None:
        path, data = self._outbox_path(transactional_id), _packed(state, messages)
        found = self._outbox(transactional_id)
        if found is None:
            request.create(path, data, acl=self._acl)
        else:
            request.set_data(path, data, found[1])

    def _outbox(self, transactional_id: str) -> tuple[bytes, int] | None:
        try:
            data, stat = self._client.get(self._outbox_path(transactional_id))
        except NoNodeError:
            return None
        return data, stat.version

    def _check_size(self, operations: Sequence[Any]) -> None:
        size = sum(
            len(operation.path.encode()) + len(getattr(operation, "data", b"") or b"")
            + OPERATION_BYTES
            for operation in operations
        )  # fmt: skip
        if size > self._multi_bytes_max:
            raise ConfigurationError(
                f"the multi has {size} bytes, {self._multi_bytes_max} at most: write less, or raise"
                " jute.maxbuffer at every server and client, and multi_bytes_max"
            )

    def _ensure(self, path: str) -> None:
        built = ""
        for part in path.strip("/").split("/"):
            built += f"/{part}"
            try:
                self._client.create(built, acl=self._acl)
            except NodeExistsError:
                continue

    def _state_path(self, transactional_id: str) -> str:
        return f"{self._root}/state/{_encoded(transactional_id)}"

    def _lease_path(self, owner: str) -> str:
        return f"{self._root}/lease/{_encoded(owner)}"

    def _outbox_path(self, transactional_id: str) -> str:
        return f"{self._root}/outbox/{_encoded(transactional_id)}"

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (KazooException, KazooTimeoutError) as error:
            raise StoreUnavailable(f"{doing}: {error!r}") from error


class ZooKeeperDecisionLog(ZooKeeperStore):
    """A recoverable log of decisions for data that does not live in ZooKeeper.

    It gives no atomicity with that data: the other participant must be prepared or idempotent by
    its own means, and follow the decision that is remembered here.
    """


def _client_of(given: Any) -> Any:
    if not isinstance(given, str):
        # By what is used of it: a client may be wrapped, for example to be traced.
        if not hasattr(given, "connected") or not hasattr(given, "transaction"):
            raise ConfigurationError(f"ZooKeeperStore takes hosts or a KazooClient, not {given!r}")
        return given
    try:
        return KazooClient(hosts=given)
    except ValueError as error:
        raise ConfigurationError(f"not hosts of ZooKeeper: {given!r}: {error}") from error


def _ours(handle: object) -> ZooKeeperTransaction:
    if not isinstance(handle, ZooKeeperTransaction):
        raise ConfigurationError(
            f"ZooKeeper remembers only in its own multi, not in a {type(handle).__name__}"
        )
    handle.check_open()
    return handle


def _inspect(results: Sequence[Any], first_of_ours: int) -> None:
    """Raise for a multi that was refused as a whole: one result names the reason."""
    failed = [(at, r) for at, r in enumerate(results) if isinstance(r, Exception)]
    if not failed:
        return
    consequences = (RolledBackError, RuntimeInconsistency)
    at, reason = next((f for f in failed if not isinstance(f[1], consequences)), failed[0])
    if at >= first_of_ours:
        raise Fenced(f"a newer claim has changed the state node: {reason!r}") from reason
    raise reason


def _encoded(name: str) -> str:
    """Percent-encoded, dots included: `.` and `..` are not node names."""
    return quote(name, safe="").replace(".", "%2E")


def _packed(state: PreparedTxnState, messages: Sequence[bytes]) -> bytes:
    lengths = [len(message) for message in messages]
    head = json.dumps({"prepared_txn_state": str(state), "lengths": lengths}).encode()
    return head + b"\n" + b"".join(messages)


def _is_of(data: bytes, state: PreparedTxnState) -> bool:
    return bool(json.loads(data.partition(b"\n")[0])["prepared_txn_state"] == str(state))


def _unpacked(data: bytes, state: PreparedTxnState) -> list[bytes]:
    head, _, rest = data.partition(b"\n")
    if not _is_of(data, state):
        return []
    messages, start = [], 0
    for length in json.loads(head)["lengths"]:
        messages.append(rest[start : start + length])
        start += length
    return messages
