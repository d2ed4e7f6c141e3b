"""Every point of a dual write on a broker without KIP-939, with and without Transactions V2."""

import uuid

import pytest

from dualwrite.broker import BrokerProcess
from tests.crash.oracle import create, judge
from tests.crash.places import Case
from tests.crash.points import INSIDE_COMMIT, WRITE_POINTS
from tests.crash.test_matrix import VICTIMS, crash, expected_after

SHORT = ["C8", *INSIDE_COMMIT, "C10", "C11"]


@pytest.fixture(scope="module", params=[1, 2], ids=["transactions-v1", "transactions-v2"])
def broker(request):
    settings = {
        "transaction.version": request.param,
        "transaction.two.phase.commit.enable": False,
    }
    with BrokerProcess(settings=settings) as running:
        yield running


def run_case(broker, nursery, tmp_path, point, who):
    app = "crash" + uuid.uuid4().hex[:8]
    address = f"sqlite:///{tmp_path / 'db'}"
    case = Case("sqlite", address, broker.bootstrap_servers, app, f"orders-{app}", "resume")
    create(case)
    result = crash(case, broker, nursery, tmp_path / "victim", point, who)
    judge(case, expected_after(point, who, result))


@pytest.mark.parametrize("point", SHORT)
def test_crash_of_a_client_in_resume_mode(broker, nursery, tmp_path, point):
    run_case(broker, nursery, tmp_path, point, "client")


@pytest.mark.long
@pytest.mark.parametrize("who", VICTIMS)
@pytest.mark.parametrize("point", WRITE_POINTS)
def test_crash_at_every_point_in_resume_mode(broker, nursery, tmp_path, point, who):
    if who == "client" and point in SHORT:
        pytest.skip("in every run")
    run_case(broker, nursery, tmp_path, point, who)
