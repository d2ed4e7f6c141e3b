"""The points of a dual write on a broker without KIP-939, with and without Transactions V2.

Recovery has three points here, in this order: the claim (R1), the raw EndTxn (R4), the new id (R2).
It has more to do if the broker has timed out what was decided: it sends the copy again, and is
killed at the points of that transaction.
"""

from dataclasses import replace

import pytest

from dualwrite import TransactionAdmin
from dualwrite.broker import BrokerProcess
from tests.crash.oracle import create, judge, open_transactions
from tests.crash.points import INSIDE_COMMIT, WRITE_POINTS
from tests.crash.test_matrix import (
    AROUND_THE_DECISION,
    NOTHING_IS_OPEN,
    SQL,
    VICTIMS,
    crash,
    run_recovery_case,
    run_write_case,
)

SHORT = [
    *(("sqlite", point) for point in ["C8", *INSIDE_COMMIT, "C10", "C11"]),
    *(("postgresql", point) for point in AROUND_THE_DECISION),
]
RECOVERY_POINTS = ["R1", "R4", "R2"]
SENT_AGAIN_POINTS = ["C4", "C5", "C6", "C7", "C11"]


@pytest.fixture(scope="module", params=[1, 2], ids=["transactions-v1", "transactions-v2"])
def broker(request):
    settings = {
        "transaction.version": request.param,
        "transaction.two.phase.commit.enable": False,
    }
    with BrokerProcess(settings=settings) as running:
        yield running


@pytest.fixture
def resuming(case):
    return replace(case, mode="resume")


@pytest.mark.parametrize(("case", "point"), SHORT, indirect=["case"])
def test_crash_of_a_client_in_resume_mode(resuming, broker, nursery, tmp_path, point):
    run_write_case(resuming, broker, nursery, tmp_path, point, "client")


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", WRITE_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_at_every_point_in_resume_mode(resuming, broker, nursery, tmp_path, point, who):
    if who == "client" and (resuming.kind, point) in SHORT:
        pytest.skip("in every run")
    run_write_case(resuming, broker, nursery, tmp_path, point, who)


@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", ["sqlite"], indirect=True)
def test_crash_of_a_recovery_in_resume_mode(resuming, broker, nursery, tmp_path, point):
    run_recovery_case(resuming, broker, nursery, tmp_path, point, "client", "C10")


@pytest.mark.long
@pytest.mark.parametrize("left_at", WRITE_POINTS)
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", RECOVERY_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_double_crash_in_resume_mode(resuming, broker, nursery, tmp_path, point, who, left_at):
    if point == "R4" and left_at in NOTHING_IS_OPEN:
        pytest.skip("nothing is left to end")
    run_recovery_case(resuming, broker, nursery, tmp_path, point, who, left_at)


def run_sent_again_case(case, broker, nursery, tmp_path, point, who):
    """The writer dies behind its COMMIT, the broker ends its transaction, its recoverer dies."""
    create(case)
    crash(case, broker, nursery, tmp_path / "writer", "C10", "client")
    time_out(case)
    folder = tmp_path / "recoverer"
    result = crash(case, broker, nursery, folder, point, who, writes=False)
    if who == "broker":
        assert result == "recovered", result
    judge(case, expected_first=True)


def time_out(case):
    """Abort what is open by its pair, as the broker does with what has been open for too long."""
    [listed] = open_transactions(case)
    name = listed.transactional_id
    with TransactionAdmin({"bootstrap.servers": case.bootstrap}) as admin:
        pair = admin.describe_transactions([name])[name].pair
        admin.end_txn(name, pair.producer_id, pair.epoch, commit=False)


@pytest.mark.parametrize("point", ["C5", "C11"])
@pytest.mark.parametrize("case", ["sqlite"], indirect=True)
def test_crash_while_messages_are_sent_again(resuming, broker, nursery, tmp_path, point):
    run_sent_again_case(resuming, broker, nursery, tmp_path, point, "client")


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", SENT_AGAIN_POINTS)
@pytest.mark.parametrize("case", SQL, indirect=True)
def test_crash_at_every_point_of_sending_again(resuming, broker, nursery, tmp_path, point, who):
    run_sent_again_case(resuming, broker, nursery, tmp_path, point, who)
