"""A driver that stalls while another one takes its query over, and then goes on as if nothing were."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dualwrite.broker import BrokerProcess
from tests.spark import kafka
from tests.spark.driver import run_pipeline
from tests.spark.faults import is_stalled, plant, release

pytestmark = pytest.mark.filterwarnings("ignore")


class OldDriver:
    """A driver in a process of its own; its processes live until the block ends."""

    def __init__(self, servers, name, checkpoint, log):
        command = [sys.executable, "-m", "tests.spark.driver", "local[2,4]", servers, name]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(checkpoint), "3"],
                cwd=Path(__file__).parents[2], stdout=output, stderr=output,
            )  # fmt: skip
        self._log = log

    def wait_until_stalled(self, folder):
        deadline = time.monotonic() + 240
        while not is_stalled(folder):
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self):
        """Wait for its own end, whichever that is."""
        self._process.wait(240)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "point",
    ["before_begin", "mid_write", "prepared", "before_decide", "decided", "first_ended", "done"],
)
def test_a_driver_that_wakes_after_its_successor_changes_nothing(
    point, spark, faults_folder, name, tmp_path
):
    """At a point of a task: a paused task that wakes when its successor's batch was decided."""
    with BrokerProcess() as broker:
        servers = broker.bootstrap_servers
        kafka.create_topic(servers, f"{name}-in", 3)
        kafka.create_topic(servers, f"{name}-out", 4)
        kafka.fill(servers, f"{name}-in", range(60), partitions=3)
        plant(faults_folder, point, "stall")
        with (
            kafka.Reader(servers, f"{name}-out") as reader,
            OldDriver(servers, name, tmp_path / "cp", tmp_path / "old.log") as old,
        ):
            old.wait_until_stalled(faults_folder)
            run_pipeline(spark, servers, name, tmp_path / "cp", 2).awaitTermination()
            assert kafka.values(servers, f"{name}-out") == list(range(60))

            release(faults_folder)
            old.end()
            kafka.fill(servers, f"{name}-in", range(60, 90), partitions=3)
            run_pipeline(spark, servers, name, tmp_path / "cp", 4).awaitTermination()

            assert reader.wait_for(90) == list(range(90))
        assert kafka.values(servers, f"{name}-out") == list(range(90))
        assert kafka.open_ids(servers, name) == []
