"""A query that is struck life after life, and what must be true of its output in the end."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from pyspark.errors import PySparkException
from sqlalchemy import create_engine, text

from tests.spark import kafka
from tests.spark.driver import run_pipeline, run_with_table
from tests.spark.faults import POINTS_OF_TASKS, left, plant

ROWS_PER_RUN = 60
FAULTS_PER_LIFE_MAX = 3

KINDS = {"raise": "exception", "self": "worker"}
"""What is struck, where it is not the action's name."""


class Campaign:
    """One pipeline from topic to topic, started again and again with another partition count."""

    master = "local[2,4]"

    def __init__(self, spark, broker, folder, name, checkpoint, partitions):
        self.spark, self.broker, self.folder = spark, broker, folder
        self.name, self.checkpoint = name, checkpoint
        self.partitions = partitions
        self.rows = 0
        self.lives = 0
        self.failures = 0
        self.struck = Counter()
        kafka.create_topic(self.servers, f"{name}-in", 3)
        kafka.create_topic(self.servers, f"{name}-out", 4)

    def __str__(self):
        struck = ", ".join(f"{count} {kind}" for kind, count in sorted(self.struck.items()))
        kills = self.struck.total() - self.struck["exception"]
        ids = len(kafka.slot_ids(self.servers, self.name))
        return (
            f"{self.rows} rows, {self.lives} lives, {self.failures} failed runs, {ids} ids,"
            f" {kills} kills; struck: {struck}"
        )

    @property
    def servers(self):
        return self.broker.bootstrap_servers

    def feed(self):
        values = range(self.rows, self.rows + ROWS_PER_RUN)
        kafka.fill(self.servers, f"{self.name}-in", values, partitions=3)
        self.rows += ROWS_PER_RUN

    def live(self, faults):
        """Plant faults and run drivers until each has struck; a JVM that dies is not the tests' own."""
        self.lives += 1
        print(f"life {self.lives}: {faults}", flush=True)
        for point, action in faults:
            plant(self.folder, point, action)
        for _ in range(2 + len(faults)):
            # A machine under load can fail a run before the fault does.
            waiting = left(self.folder)
            if waiting == []:
                break
            if any(self.kills_driver(*fault) for fault in faults if fault[0] in waiting):
                self.run_apart()
            else:
                self.run()
        assert left(self.folder) == [], f"not reached of {faults}"
        self.struck.update(self.kind(*fault) for fault in faults)

    def kills_driver(self, _point, action):
        """Whether the fault ends more than Python workers, brokers and queries."""
        return action in ("jvm", "executor")

    def kind(self, _point, action):
        return KINDS.get(action, action)

    def run(self):
        """One life of a driver; True if it came to its end."""
        try:
            self.run_here()
        except PySparkException:
            self.failures += 1
            return False
        return True

    def run_here(self):
        run_pipeline(
            self.spark, self.servers, self.name, self.checkpoint, self.partitions()
        ).awaitTermination()

    def run_apart(self):
        """The same in a process of its own, whose JVM and executors can be killed."""
        command = [sys.executable, "-m", "tests.spark.driver", self.master, self.servers]
        command += [self.name, str(self.checkpoint), str(self.partitions()), *self.more()]
        with (self.folder / "pid.log").open("ab") as log:
            ended = subprocess.run(
                command, cwd=Path(__file__).parents[2], stdout=log, stderr=log, check=False
            )
        self.failures += ended.returncode != 0
        return ended.returncode == 0

    def more(self):
        """Further arguments of a driver's process."""
        return []

    def check(self, reader):
        """Nobody strikes any more: every row is there once, wherever one looks, and nothing is open."""
        for _ in range(3):
            if self.run():
                break
        assert not_once(reader.wait_for(self.rows), self.rows) == {}
        assert not_once(kafka.values(self.servers, f"{self.name}-out"), self.rows) == {}
        assert kafka.open_ids(self.servers, self.name) == []


class DriverProcesses(Campaign):
    """Every driver is a process of its own."""

    def __init__(self, master, *more):
        super().__init__(None, *more)
        self.master = master

    def run(self):
        return self.run_apart()


class TableCampaign(Campaign):
    """From topic to topic and table, by `foreachBatch`: here the driver's Python decides."""

    def __init__(self, database, *more):
        super().__init__(*more)
        self.database = database
        self._engine = create_engine(database)
        with self._engine.begin() as connection:
            # Without a key: a row that comes twice must be seen, not refused.
            connection.execute(text(f"CREATE TABLE {self.name} (value INT, batch INT)"))

    def close(self):
        self._engine.dispose()

    def kills_driver(self, point, action):
        return super().kills_driver(point, action) or self.kind(point, action) == "driver"

    def kind(self, point, action):
        if action == "self" and point not in POINTS_OF_TASKS:
            return "driver"
        return super().kind(point, action)

    def run_here(self):
        run_with_table(
            self.spark, self.servers, self.name, self.checkpoint, self.partitions(), self.database
        )

    def more(self):
        return [self.database]

    def live(self, faults):
        super().live(faults)
        records = kafka.values(self.servers, f"{self.name}-out")
        early = set(records) - set(self.table())
        assert not early, f"records without their rows after {faults}"

    def check(self, reader):
        super().check(reader)
        assert not_once(self.table(), self.rows) == {}

    def table(self):
        with self._engine.connect() as connection:
            return connection.execute(text(f"SELECT value FROM {self.name}")).scalars().all()


def not_once(values, rows):
    """How often a number is there, for each below `rows` that is not there once, and each other."""
    counts, expected = Counter(values), range(rows)
    wrong = {value for value in {*counts, *expected} if counts[value] != (value in expected)}
    return {value: counts[value] for value in sorted(wrong)}


def dealt(faults, chance):
    """Lives that have every fault once, in an order by chance; one point fails once in a life."""
    waiting = chance.sample(faults, len(faults))
    while waiting:
        drawn = waiting[: chance.randint(1, FAULTS_PER_LIFE_MAX)]
        life = {point: (point, action) for point, action in drawn}
        waiting = [fault for fault in waiting if fault not in life.values()]
        yield list(life.values())


def rounds(faults, chance, seconds):
    """Rounds of lives, each with all faults, the last one begun before the time is over."""
    end = time.monotonic() + seconds
    while True:
        yield dealt(faults, chance)
        if time.monotonic() >= end:
            return


def conduct(campaign, all_rounds):
    with (
        kafka.Reader(campaign.servers, f"{campaign.name}-out") as reader,
        kafka.Restarter(campaign.broker, campaign.folder),
    ):
        for lives in all_rounds:
            for life in lives:
                campaign.feed()
                campaign.live(life)
            campaign.check(reader)
            print(campaign, flush=True)
