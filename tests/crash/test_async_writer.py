"""The points from COMMIT on, of a writer in an event loop.

It ends a unit in a task of its own, on drivers of its own: in SQLite COMMIT is a thread's, in
PostgreSQL the loop turns while it is under way.
"""

import pytest

from tests.crash.points import AFTER_COMMIT, INSIDE_COMMIT, RECOVERY_POINTS, WRITE_POINTS
from tests.crash.test_matrix import SQL, VICTIMS, run_recovery_case, run_write_case

FROM_COMMIT_ON = [*INSIDE_COMMIT, *AFTER_COMMIT]


@pytest.mark.parametrize("point", FROM_COMMIT_ON)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_an_async_client(case, broker, nursery, tmp_path, point):
    run_write_case(case, broker, nursery, tmp_path, point, "client", is_async=True)


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_an_async_write_at_every_other_point(case, broker, nursery, tmp_path, point, who):
    if who == "client" and point in FROM_COMMIT_ON:
        pytest.skip("in every run")
    run_write_case(case, broker, nursery, tmp_path, point, who, is_async=True)


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", AFTER_COMMIT)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_an_async_write_whose_kafka_commit_is_in_the_background(
    case, broker, nursery, tmp_path, point, who
):
    options = {"is_async": True, "kafka_commit": "background"}
    run_write_case(case, broker, nursery, tmp_path, point, who, **options)


@pytest.mark.long
@pytest.mark.parametrize("left_at", ["C7", "C10"])
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_of_an_async_recovery(case, broker, nursery, tmp_path, point, who, left_at):
    run_recovery_case(case, broker, nursery, tmp_path, point, who, left_at, is_async=True)
