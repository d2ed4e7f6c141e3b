"""A query that is killed at one point after another, and every row exactly once in the end."""

import itertools
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from dualwrite.broker import BrokerProcess
from tests.spark import kafka
from tests.spark.driver import run_pipeline
from tests.spark.faults import POINTS_OF_TASKS, left, plant

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS_PER_RUN = 60

KINDS = {"raise": "exception", "self": "worker"}
"""What is killed, where it is not the action's name."""
# A life of a driver each. Spark runs a failed task again, so a task's fault and the driver's share one.
SHORT = [
    [("decided", "jvm")],
    [("mid_write", "raise"), ("before_decide", "raise")],
    [("mid_write", "self"), ("decided", "self")],
    [("prepared", "self"), ("first_ended", "raise")],
    [("decided", "broker"), ("done", "self")],
]
LONG = [
    *itertools.chain.from_iterable(SHORT[1:]),
    ("before_begin", "raise"),
    ("before_prepare", "self"),
    ("opened", "self"),
    ("mid_write", "broker"),
    ("prepared", "broker"),
    ("before_decide", "self"),
    ("before_decide", "broker"),
    ("decided", "raise"),
    ("first_ended", "self"),
    ("first_ended", "broker"),
    ("before_done", "self"),
    ("before_done", "raise"),
    ("done", "raise"),
]


class Campaign:
    """One pipeline from topic to topic, started again and again with another partition count."""

    master = "local[2,4]"

    def __init__(self, spark, broker, folder, name, checkpoint, partitions):
        self.spark, self.broker, self.folder = spark, broker, folder
        self.name, self.checkpoint = name, checkpoint
        self.partitions = partitions
        self.rows = 0
        self.failures = 0
        self.struck = Counter()
        kafka.create_topic(self.servers, f"{name}-in", 3)
        kafka.create_topic(self.servers, f"{name}-out", 4)

    def __str__(self):
        struck = ", ".join(f"{count} {kind}" for kind, count in sorted(self.struck.items()))
        ids = len(kafka.slot_ids(self.servers, self.name))
        return f"{self.rows} rows, {self.failures} failed runs, {ids} ids; struck: {struck}"

    @property
    def servers(self):
        return self.broker.bootstrap_servers

    def feed(self):
        values = range(self.rows, self.rows + ROWS_PER_RUN)
        kafka.fill(self.servers, f"{self.name}-in", values, partitions=3)
        self.rows += ROWS_PER_RUN

    def live(self, faults):
        """Plant faults and run drivers until each has struck; a JVM that dies is not the tests' own."""
        for point, action in faults:
            plant(self.folder, point, action)
        is_apart = any(action in ("jvm", "executor") for _, action in faults)
        for _ in range(3):
            # A machine under load can fail a run before the fault does.
            if is_apart:
                self.run_apart()
            else:
                self.run()
            if left(self.folder) == []:
                break
        assert left(self.folder) == [], f"not reached of {faults}"
        self.struck.update(KINDS.get(action, action) for _, action in faults)

    def run(self):
        """One life of a driver; True if it came to its end."""
        try:
            run_pipeline(
                self.spark, self.servers, self.name, self.checkpoint, self.partitions()
            ).awaitTermination()
        except PySparkException:
            self.failures += 1
            return False
        return True

    def run_apart(self):
        """The same in a process of its own, whose JVM and executors can be killed."""
        command = [sys.executable, "-m", "tests.spark.driver", self.master, self.servers]
        command += [self.name, str(self.checkpoint), str(self.partitions())]
        with (self.folder / "pid.log").open("ab") as log:
            ended = subprocess.run(
                command, cwd=Path(__file__).parents[2], stdout=log, stderr=log, check=False
            )
        self.failures += ended.returncode != 0
        return ended.returncode == 0


def conduct(campaign, lives):
    with (
        kafka.Reader(campaign.servers, f"{campaign.name}-out") as reader,
        kafka.Restarter(campaign.broker, campaign.folder),
    ):
        for life in lives:
            campaign.feed()
            campaign.live(life)
        for _ in range(3):
            if campaign.run():
                break
        seen = reader.wait_for(campaign.rows)
    print(campaign)
    assert seen == list(range(campaign.rows))
    assert kafka.values(campaign.servers, f"{campaign.name}-out") == list(range(campaign.rows))
    assert kafka.open_ids(campaign.servers, campaign.name) == []


@pytest.fixture
def campaign(spark, faults_folder, name, tmp_path, seed):
    chance = random.Random(seed)
    with BrokerProcess() as broker:
        yield Campaign(
            spark, broker, faults_folder, name, tmp_path / "cp", lambda: chance.randint(1, 5)
        )


@pytest.mark.timeout(900)
def test_every_row_arrives_once_whatever_fails(campaign):
    conduct(campaign, SHORT)

    assert campaign.failures >= 4
    assert set(campaign.struck) == {"jvm", "worker", "broker", "exception"}
    assert len(kafka.slot_ids(campaign.servers, campaign.name)) <= 5 * 4


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_row_arrives_once_in_the_long_run(campaign):
    faults = LONG * 2
    random.Random(1).shuffle(faults)
    conduct(campaign, [[fault] for fault in faults])

    assert len(kafka.slot_ids(campaign.servers, campaign.name)) <= 5 * 4


class DriverProcesses(Campaign):
    """Every driver is a process of its own."""

    def __init__(self, master, *more):
        super().__init__(None, *more)
        self.master = master

    def run(self):
        return self.run_apart()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("master", "faults"),
    [
        (
            "local[2,4]",
            [(p, "jvm") for p in (*POINTS_OF_TASKS[1:], "before_decide", "decided")]
            + [(p, "jvm") for p in ("first_ended", "before_done", "done")],
        ),
        (
            "local-cluster[2,1,900]",
            [
                ("mid_write", "executor"),
                ("prepared", "executor"),
                ("decided", "jvm"),
                ("mid_write", "self"),
            ],
        ),
    ],
)
def test_drivers_and_executors_that_are_killed(master, faults, faults_folder, name, tmp_path):
    counts = itertools.cycle([3, 5, 2, 4, 7, 1, 6])
    with BrokerProcess() as broker:
        campaign = DriverProcesses(
            master, broker, faults_folder, name, tmp_path / "cp", lambda: next(counts)
        )
        conduct(campaign, [[fault] for fault in faults])

        assert len(kafka.slot_ids(campaign.servers, name)) <= 7 * 4
