"""Metrics of a sink, as Prometheus would see them."""

import pytest
from prometheus_client import CollectorRegistry

from dualwrite.adapters.sql import SqlStore
from dualwrite.recipes.spark import SinkListener
from tests.spark.test_zombies import QUERY, Sink


@pytest.fixture
def sink(servers, name):
    sink = Sink(servers, name)
    yield sink
    sink.close()


def test_each_decision_is_counted_once(sink, servers, name):
    registry = CollectorRegistry()
    listener = SinkListener(name, {"bootstrap.servers": servers}, registry=registry)
    listener.publish(QUERY)
    for batch in range(2):
        attempt = sink.coordinator.open()
        reports = [sink.write(attempt, p, p, batch) for p in range(3)]
        sink.write(attempt, 0, 99, batch, attempt_number=1)
        sink.coordinator.commit(reports, batch)
        listener.publish(QUERY)
        listener.publish(QUERY)

    def value(metric, **labels):
        return registry.get_sample_value(metric, {"sink": name, **labels})

    assert value("dualwrite_spark_batch") == 1
    assert value("dualwrite_spark_rows_total") == 6
    assert value("dualwrite_spark_orphans_total") == 2
    assert value("dualwrite_spark_in_doubt") == 0
    assert value("dualwrite_spark_step_seconds", step="decide") > 0


def test_decisions_that_cannot_be_read_are_only_logged(name, tmp_path, caplog):
    store = SqlStore(f"sqlite:///{tmp_path}/data.db", create=True)
    store.close()
    (tmp_path / "data.db").unlink()
    (tmp_path / "data.db").mkdir()
    config = {"bootstrap.servers": "127.0.0.1:1", "transaction.timeout.ms": 30_000}

    SinkListener(name, config, store, CollectorRegistry()).publish(QUERY)

    assert "unable to open database file" in caplog.text
