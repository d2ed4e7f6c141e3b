"""The statements of an SQL store, over a connection that somebody else began and will end."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Delete,
    Insert,
    Row,
    Select,
    Update,
    bindparam,
    case,
    delete,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from dualwrite.adapters.claims import claim_of
from dualwrite.adapters.sql.dialect import SqlDialect
from dualwrite.adapters.sql.tables import StateTables
from dualwrite.errors import Fenced
from dualwrite.prepared import PreparedTxnState
from dualwrite.slot_ids import check_app, of_app
from dualwrite.store import NOT_CLAIMED_YET, Claim, Heuristic, Lease, StoreRow

FORGOTTEN_LEASE_SECONDS = 86_400.0


class Operations:
    """What a store does, in SQL. Values are always bound; names were checked and are quoted."""

    def __init__(self, dialect: SqlDialect, tables: StateTables) -> None:
        self.dialect = dialect
        self.tables = tables
        # What a dual write runs is made once: building a statement takes longer than running it.
        self.remember = self._remember()
        """Takes `id`, `prepared` and `mine`, the fence."""
        self.forget_all = self._forget_messages()
        """Takes `id`."""
        self.keep_message = self._keep_message()
        """Takes `id`, `place`, `prepared` and `kept`."""

    def claim(
        self, connection: Connection, transactional_id: str, expect: int | None, owner: str | None
    ) -> Claim:
        state = self.tables.state
        changes: dict[str, object] = {"fence": state.c.fence + 1, "updated_at": self.dialect.now()}
        if owner is not None:
            changes["owner"] = owner
        first = {
            "transactional_id": transactional_id,
            "fence": NOT_CLAIMED_YET + 1,
            "owner": owner or "",
            "updated_at": self.dialect.now(),
        }
        if expect is None:
            connection.execute(self.dialect.upsert(state, first, changes))
        elif expect == NOT_CLAIMED_YET:
            try:
                connection.execute(insert(state).values(first))
            except IntegrityError as error:
                raise Fenced(f"{transactional_id} was claimed by somebody else first") from error
        else:
            mine = (state.c.transactional_id == transactional_id) & (state.c.fence == expect)
            if connection.execute(update(state).where(mine).values(changes)).rowcount == 0:
                raise Fenced(f"{transactional_id} no longer has fence {expect}")
        row = self.row(connection, transactional_id)
        if row is None:
            raise Fenced(f"{transactional_id} has lost its row")
        return claim_of(row)

    def _remember(self) -> Update:
        """The last statement of a dual write: no row means that somebody else has the slot."""
        table = self.tables.state
        statement = (
            update(table)
            .where(table.c.transactional_id == bindparam("id"), table.c.fence == bindparam("mine"))
            .values(
                prepared_txn_state=bindparam("prepared"),
                seq=table.c.seq + literal_column("1"),
                state_fence=bindparam("mine"),
                updated_at=self.dialect.now(),
            )
        )
        return self.dialect.durable_update(statement)

    def recall(self, connection: Connection, transactional_id: str, fence: int) -> PreparedTxnState:
        table = self.tables.state
        found = connection.execute(
            select(table.c.prepared_txn_state).where(
                table.c.transactional_id == transactional_id, table.c.fence == fence
            )
        ).one_or_none()
        if found is None:
            raise Fenced(f"{transactional_id} no longer has fence {fence}")
        return PreparedTxnState.parse(found[0])

    def release(self, connection: Connection, transactional_id: str, fence: int) -> bool:
        return self._change(connection, transactional_id, fence, owner="")

    def bind_cluster(
        self, connection: Connection, transactional_id: str, fence: int, cluster_id: str
    ) -> None:
        if not self._change(connection, transactional_id, fence, cluster_id=cluster_id):
            raise Fenced(f"{transactional_id} no longer has fence {fence}")

    def _change(
        self, connection: Connection, transactional_id: str, fence: int, **values: object
    ) -> bool:
        table = self.tables.state
        statement = (
            update(table)
            .where(table.c.transactional_id == transactional_id, table.c.fence == fence)
            .values(updated_at=self.dialect.now(), **values)
        )
        return connection.execute(statement).rowcount > 0

    def row(self, connection: Connection, transactional_id: str) -> StoreRow | None:
        chosen = self._rows().where(self.tables.state.c.transactional_id == transactional_id)
        found = connection.execute(chosen).one_or_none()
        return None if found is None else _store_row(found)

    def rows(self, connection: Connection, app: str | None) -> list[StoreRow]:
        chosen = self._rows()
        if app is not None:
            # A range of the primary key: in bytes, ":" is what follows "9".
            key = self.tables.state.c.transactional_id
            chosen = chosen.where(key >= f"{check_app(app)}-0", key < f"{app}-:")
        return of_app([_store_row(found) for found in connection.execute(chosen)], app)

    def _rows(self) -> Select[Any]:
        state, lease = self.tables.state, self.tables.lease
        is_live = lease.c.lease_until > self.dialect.now()
        standing = case(
            (state.c.owner == "", Lease.NONE.value),
            (is_live, Lease.LIVE.value),
            else_=Lease.EXPIRED.value,
        )
        return select(*state.c, standing.label("standing")).select_from(
            state.outerjoin(lease, lease.c.owner == state.c.owner)
        )

    def lease(self, connection: Connection, owner: str, seconds: float) -> None:
        state, lease = self.tables.state, self.tables.lease
        until = self.dialect.later(seconds)
        connection.execute(
            self.dialect.upsert(
                lease, {"owner": owner, "lease_until": until}, {"lease_until": until}
            )
        )
        forgotten = lease.c.lease_until < self.dialect.later(-FORGOTTEN_LEASE_SECONDS)
        is_named = select(state.c.owner).where(state.c.owner == lease.c.owner).exists()
        connection.execute(delete(lease).where(forgotten, ~is_named))

    def renew(self, connection: Connection, owner: str, seconds: float) -> bool:
        lease = self.tables.lease
        statement = (
            update(lease)
            .where(lease.c.owner == owner, lease.c.lease_until > self.dialect.now())
            .values(lease_until=self.dialect.later(seconds))
        )
        return connection.execute(statement).rowcount > 0

    def end_lease(self, connection: Connection, owner: str) -> None:
        connection.execute(delete(self.tables.lease).where(self.tables.lease.c.owner == owner))

    def record_heuristic(self, connection: Connection, heuristic: Heuristic) -> None:
        connection.execute(
            insert(self.tables.heuristics).values(
                transactional_id=heuristic.transactional_id,
                prepared_txn_state=str(heuristic.state),
                action=heuristic.action,
                reason=heuristic.reason,
                recorded_by=heuristic.recorded_by,
                recorded_at=self.dialect.now(),
            )
        )

    def heuristics(self, connection: Connection, transactional_id: str | None) -> list[Heuristic]:
        table = self.tables.heuristics
        chosen = select(table).order_by(table.c.id)
        if transactional_id is not None:
            chosen = chosen.where(table.c.transactional_id == transactional_id)
        return [
            Heuristic(
                transactional_id=found.transactional_id,
                state=PreparedTxnState.parse(found.prepared_txn_state),
                action=found.action,
                reason=found.reason,
                recorded_by=found.recorded_by,
                recorded_at=_utc(found.recorded_at),
            )
            for found in connection.execute(chosen)
        ]

    def _forget_messages(self) -> Delete:
        outbox = self.tables.outbox
        return delete(outbox).where(outbox.c.transactional_id == bindparam("id"))

    def _keep_message(self) -> Insert:
        return insert(self.tables.outbox).values(
            transactional_id=bindparam("id"),
            position=bindparam("place"),
            prepared_txn_state=bindparam("prepared"),
            message=bindparam("kept"),
        )

    def kept_messages(
        self, connection: Connection, transactional_id: str, state: PreparedTxnState
    ) -> list[bytes]:
        outbox = self.tables.outbox
        chosen = (
            select(outbox.c.message)
            .where(
                outbox.c.transactional_id == transactional_id,
                outbox.c.prepared_txn_state == str(state),
            )
            .order_by(outbox.c.position)
        )
        return [bytes(found[0]) for found in connection.execute(chosen)]

    def forget_messages(
        self, connection: Connection, transactional_id: str, state: PreparedTxnState
    ) -> None:
        of_this_state = self.tables.outbox.c.prepared_txn_state == str(state)
        connection.execute(self.forget_all.where(of_this_state), {"id": transactional_id})


def _store_row(found: Row[Any]) -> StoreRow:
    return StoreRow(
        transactional_id=found.transactional_id,
        state=PreparedTxnState.parse(found.prepared_txn_state),
        seq=found.seq,
        fence=found.fence,
        state_fence=found.state_fence,
        owner=found.owner,
        lease=Lease(found.standing),
        cluster_id=found.cluster_id,
        updated_at=_utc(found.updated_at),
    )


def _utc(moment: datetime) -> datetime:
    """MySQL and SQLite give back UTC without saying so."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
