"""Writers and recoverers that take their settings from outside."""

import threading

import pytest

from dualwrite import ConfigurationError
from dualwrite.recipes.dual_write import from_environment, store_at, writer_at
from dualwrite.recipes.recovery import keep_recovering
from tests.dualwrite.crashed import CrashedInstance


def test_writer_from_a_url(sqlite_world):
    world = sqlite_world
    config = {"bootstrap.servers": world.bootstrap}
    with writer_at(world.url, config, app=world.app, table=world.state_table, slots=1) as dw:
        with dw.transaction() as tx:
            world.order(tx, 1)

    world.assert_agree([1])


def test_writer_from_rocksdb_url(shared_broker, tmp_path):
    config = {"bootstrap.servers": shared_broker.bootstrap_servers}
    with writer_at(f"rocksdb:{tmp_path / 'db'}", config, app="rocks", slots=1) as dw:
        with dw.transaction() as tx:
            tx.batch.put("key", "value")
            tx.produce("rocks", value=b"x")
        assert tx.outcome.kafka == "committed"


def test_writer_from_the_environment(sqlite_world, monkeypatch):
    world = sqlite_world
    store = store_at(world.url)
    store.create_tables()
    store.close()
    monkeypatch.setenv("DUALWRITE_STORE", world.url)
    monkeypatch.setenv("DUALWRITE_BOOTSTRAP_SERVERS", world.bootstrap)
    with pytest.raises(ConfigurationError, match="DUALWRITE_APP"), from_environment():
        pass
    monkeypatch.setenv("DUALWRITE_APP", world.app)
    monkeypatch.setenv("DUALWRITE_SLOTS", "many")
    with pytest.raises(ConfigurationError, match="DUALWRITE_SLOTS"), from_environment():
        pass
    monkeypatch.setenv("DUALWRITE_SLOTS", "1")
    monkeypatch.setenv("DUALWRITE_INSTANCE", "pod-1")
    with from_environment() as dw, dw.transaction() as tx:
        world.order(tx, 1)

    world.assert_agree([1])


@pytest.mark.parametrize("url", ["", "nonsense", "no-such-database://x"])
def test_wrong_url_is_refused(url):
    with pytest.raises(ConfigurationError):
        store_at(url)


def test_recoverer_beside_the_writers(sqlite_world):
    world = sqlite_world
    config = {"bootstrap.servers": world.bootstrap}
    stop, ended = threading.Event(), []

    def told(each):
        ended.append((each.transactional_id, each.verdict))
        stop.set()

    crashed = CrashedInstance(world, f"{world.app}-3").prepare(1).decide()
    crashed.die()
    keep_recovering(
        config, store=world.store, app=world.app, stop=stop, every_seconds=0.05, ended=told
    )

    assert ended == [(crashed.transactional_id, "commit")]
    world.assert_agree([1])
