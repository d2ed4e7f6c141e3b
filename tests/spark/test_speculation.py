"""Spark's own speculation: two attempts of one task at once, and the loser has prepared already."""

import os
import subprocess
import sys

import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.recipes.spark.engine import Engine
from dualwrite.recipes.spark.java import ensure_java
from dualwrite.recipes.spark.names import slot_id
from dualwrite.recipes.spark.options import parse_sink
from tests.spark import kafka
from tests.spark.faults import is_stalled, left, plant
from tests.spark.sessions import ROOT
from tests.spark.standalone import Standalone

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.driver.host": "127.0.0.1",
}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", ["before_prepare", "prepared"])
def test_a_speculative_copy_wins_and_the_loser_leaves_nothing(point, faults_folder, name, tmp_path):
    """The first attempt to come by stalls for good, so Spark starts a copy of it on the other host."""
    ensure_java()
    with BrokerProcess() as broker, Standalone(tmp_path, workers=2) as cluster:
        servers = broker.bootstrap_servers
        kafka.create_topic(servers, f"{name}-in", 3)
        kafka.create_topic(servers, f"{name}-out", 4)
        kafka.fill(servers, f"{name}-in", range(90), partitions=3)
        plant(faults_folder, point, "stall")

        drive(cluster.url, servers, name, tmp_path)

        assert left(faults_folder) == []
        assert is_stalled(faults_folder)
        assert kafka.values(servers, f"{name}-out") == list(range(90))
        assert kafka.open_ids(servers, name) == []
        # The copy is attempt 1 and begins in slot 1; the loser's slot had to be swept.
        slots = kafka.slot_ids(servers, name)
        assert len([one for one in slots if one.endswith(".1")]) >= 1, slots
        assert {slot_id(name, p, 0) for p in range(3)} <= set(slots)
        assert orphans_aborted(servers, name) >= 1


def drive(master, servers, name, folder):
    settings = " ".join(f"--conf {key}={value}" for key, value in SPECULATION.items())
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"}
    command = [sys.executable, "-m", "tests.spark.driver", master, servers, name]
    done = subprocess.run(
        [*command, str(folder / "cp"), "3"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]


def orphans_aborted(servers, name):
    options = parse_sink({"kafka.bootstrap.servers": servers, "dualwrite.sink.id": name})
    with Engine(options, "-").decisions() as log:
        return sum(d.metrics.get("orphans_aborted", 0) for d in log.read().decisions.values())
