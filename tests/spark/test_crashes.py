"""A query that is killed at one point after another, and every row exactly once in the end.

pytest --long -s -n0 tests/spark/test_crashes.py --soak 900     rounds of all faults, for 15 minutes each
"""

import itertools
import random
from contextlib import closing

import pytest

from dualwrite.broker import BrokerProcess
from tests.spark import kafka
from tests.spark.campaign import Campaign, DriverProcesses, TableCampaign, conduct, not_once, rounds
from tests.spark.faults import POINTS_OF_TASKS

pytestmark = pytest.mark.filterwarnings("ignore")

# A life of a driver each. Spark runs a failed task again, so a task's fault and the driver's share one.
SHORT = [
    [("decided", "jvm")],
    [("mid_write", "raise"), ("before_decide", "raise")],
    [("mid_write", "self"), ("decided", "self")],
    [("prepared", "self"), ("first_ended", "raise")],
    [("decided", "broker"), ("done", "self")],
]
LONG = [
    *itertools.chain.from_iterable(SHORT),
    ("before_begin", "raise"),
    ("before_prepare", "self"),
    ("opened", "self"),
    ("mid_write", "broker"),
    ("mid_write", "jvm"),
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
# With a table, the points of the decision lie before and after the COMMIT that holds the rows.
TABLE_SHORT = [
    [("mid_write", "self"), ("decided", "jvm")],
    [("before_decide", "raise"), ("first_ended", "broker")],
]
TABLE_LONG = [
    *itertools.chain.from_iterable(TABLE_SHORT),
    ("before_begin", "raise"),
    ("mid_write", "broker"),
    ("before_prepare", "self"),
    ("prepared", "self"),
    ("prepared", "broker"),
    ("prepared", "jvm"),
    ("opened", "raise"),
    ("before_decide", "self"),
    ("before_decide", "broker"),
    ("before_decide", "jvm"),
    ("decided", "raise"),
    ("decided", "self"),
    ("decided", "broker"),
    ("first_ended", "raise"),
    ("first_ended", "self"),
    ("before_done", "raise"),
    ("before_done", "broker"),
    ("done", "raise"),
    ("done", "jvm"),
]


@pytest.fixture
def chance(seed):
    return random.Random(seed)


@pytest.fixture
def parts(spark, faults_folder, name, tmp_path, chance):
    """What every campaign in this Spark is made of."""
    with BrokerProcess() as broker:
        yield spark, broker, faults_folder, name, tmp_path / "cp", lambda: chance.randint(1, 5)


@pytest.fixture
def campaign(parts):
    return Campaign(*parts)


@pytest.fixture
def table_campaign(parts, postgres_url):
    with closing(TableCampaign(postgres_url, *parts)) as campaign:
        yield campaign


def test_a_row_that_is_lost_or_twice_or_nobodys_is_told():
    assert not_once([2, 0, 1], rows=3) == {}
    assert not_once([2, 0, 0, 7], rows=4) == {0: 2, 1: 0, 3: 0, 7: 1}


@pytest.mark.parametrize("faults", [LONG, TABLE_LONG])
def test_a_round_has_every_fault_once_and_a_point_once_in_a_life(faults, chance):
    for lives in itertools.islice(rounds(faults, chance, float("inf")), 100):
        drawn = list(lives)
        assert sorted(itertools.chain.from_iterable(drawn)) == sorted(faults)
        assert all(len({point for point, _ in life}) == len(life) for life in drawn)


@pytest.mark.timeout(900)
def test_every_row_arrives_once_whatever_fails(campaign):
    conduct(campaign, [SHORT])

    assert campaign.failures >= 4
    assert set(campaign.struck) == {"jvm", "worker", "broker", "exception"}
    assert len(kafka.slot_ids(campaign.servers, campaign.name)) <= 5 * 4


@pytest.mark.timeout(900)
def test_rows_and_records_of_one_decision_arrive_once_whatever_fails(table_campaign):
    conduct(table_campaign, [TABLE_SHORT])

    assert table_campaign.failures >= 2
    assert set(table_campaign.struck) == {"jvm", "worker", "broker", "exception"}


@pytest.mark.long
def test_every_row_arrives_once_in_the_long_run(campaign, chance, soak_seconds):
    conduct(campaign, rounds(LONG, chance, soak_seconds))

    assert len(kafka.slot_ids(campaign.servers, campaign.name)) <= 5 * 4


@pytest.mark.long
def test_rows_and_records_arrive_once_in_the_long_run(table_campaign, chance, soak_seconds):
    conduct(table_campaign, rounds(TABLE_LONG, chance, soak_seconds))

    assert len(kafka.slot_ids(table_campaign.servers, table_campaign.name)) <= 5 * 4


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
        conduct(campaign, [[[fault] for fault in faults]])

        assert len(kafka.slot_ids(campaign.servers, name)) <= 7 * 4
