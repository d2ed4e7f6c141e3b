"""The databases of the crash matrix behind one small interface, usable in any process."""

import json
from dataclasses import asdict, dataclass

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from dualwrite import AsyncDualWriter, DualWriter


@dataclass(frozen=True)
class Case:
    """Where one case of the matrix writes; travels to the victim as JSON."""

    kind: str
    address: str
    """URL, path or hosts."""
    bootstrap: str
    app: str
    topic: str
    mode: str = "auto"

    def to_json(self):
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data):
        return cls(**json.loads(data))

    @property
    def place(self):
        return {"rocksdb": Rocks, "zookeeper": Zoo}.get(self.kind, Sql)(self)

    def writer(self, place, **options):
        return self._writer(DualWriter, place.store, **options)

    def async_writer(self, place, **options):
        return self._writer(AsyncDualWriter, place.async_store, **options)

    def _writer(self, kind, store, **options):
        config = {"bootstrap.servers": self.bootstrap, "max.block.ms": 20_000}
        options = {"slots": 1, "lease_seconds": 600, "mode": self.mode} | options
        return kind(config, store=store, app=self.app, **options)


class Sql:
    def __init__(self, case):
        from dualwrite.adapters.sql import SqlStore

        self._orders = "orders_" + case.app.replace("-", "_")
        self._engine = create_engine(case.address, poolclass=NullPool)
        table = "state_" + case.app.replace("-", "_")
        self.store = SqlStore(self._engine, table=table, lock_timeout=2)
        self.async_store = SqlStore(case.address, table=table, lock_timeout=2)
        """Gets a driver for event loops by its URL."""

    def create(self, commit_seconds=0):
        self.store.create_tables()
        with self._engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self._orders} (id INTEGER PRIMARY KEY)"))
            if commit_seconds:
                self._slow_commit(connection, commit_seconds)

    def _slow_commit(self, connection, seconds):
        """COMMIT of an order waits inside the database, long enough to kill its client."""
        name = self._orders
        for statement in (
            f"CREATE FUNCTION {name}_wait() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$",
            f"CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {name} DEFERRABLE INITIALLY"
            f" DEFERRED FOR EACH ROW WHEN (NEW.id = 1) EXECUTE FUNCTION {name}_wait()",
        ):
            connection.execute(text(statement))

    def is_committing(self):
        with self._engine.connect() as connection:
            return connection.execute(
                text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
            ).scalar_one()

    def order(self, tx, number):
        tx.session.execute(self._insertion(number))

    async def async_order(self, tx, number):
        await tx.session.execute(self._insertion(number))

    def _insertion(self, number):
        return text(f"INSERT INTO {self._orders} VALUES ({number})")

    def orders(self):
        with self._engine.connect() as connection:
            found = connection.execute(text(f"SELECT id FROM {self._orders} ORDER BY id"))
            return [row[0] for row in found]

    def close(self):
        self._engine.dispose()


class Rocks:
    def __init__(self, case):
        from dualwrite.adapters.rocksdb import RocksDbStore

        self.store = RocksDbStore(case.address)

    def create(self, commit_seconds=0):
        pass

    def order(self, tx, number):
        tx.batch.put(f"order-{number}", "x")

    def orders(self):
        keys = (key for key in self.store.db.keys() if str(key).startswith("order-"))  # noqa: SIM118
        return sorted(int(str(key).partition("-")[2]) for key in keys)

    def close(self):
        self.store.close()


class Zoo:
    def __init__(self, case):
        from dualwrite.adapters.zookeeper import ZooKeeperStore

        self._root = f"/{case.app}"
        self.store = ZooKeeperStore(case.address, root=f"{self._root}/state")

    def create(self, commit_seconds=0):
        self.store.client.ensure_path(f"{self._root}/orders")

    def order(self, tx, number):
        tx.multi.create(f"{self._root}/orders/{number}")

    def orders(self):
        self.store.client.sync(f"{self._root}/orders")
        return sorted(int(name) for name in self.store.client.get_children(f"{self._root}/orders"))

    def close(self):
        self.store.close()
