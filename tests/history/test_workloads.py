"""Four client libraries and a dual writer work while much fails; the checker finds nothing."""

import json

import pytest

from tests.history.clients import CLIENTS, TOPIC
from tests.history.trouble import FAULTS
from tests.history.workloads import DUAL, WORKLOADS, Report, judge, run

SECONDS = 12
SECONDS_LONG = 300


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_clients_see_no_anomaly_whatever_fails(tmp_path, request, workload, seed):
    seconds = SECONDS_LONG if request.config.getoption("--long") else SECONDS

    report = run(tmp_path, workload, seed, seconds)

    print(report)
    assert report.anomalies == []
    assert report.missing == []
    assert set(report.faults) == set(FAULTS)
    assert all(report.hits[kind] >= count for kind, count in report.faults.items())
    assert report.subscribed > 0
    assert report.reached > 0
    assert sum(report.aborted.values()) > 0
    assert bool(report.alone["ok"]) == (workload == "append")
    assert {client for client, counts in report.outcomes.items() if counts["ok"]} == {
        *CLIENTS,
        DUAL,
    }
    assert report.rows > 0
    assert report.watermarks > 1


def test_an_account_that_does_not_add_up_is_found(tmp_path):
    txn = {"process": "ours.0", "number": 1, "polls": [], "consumed": [], "dual": False}
    sends = [[f"{TOPIC}/0", "ours.0/1:0=-5", -1], [f"{TOPIC}/1", "ours.0/1:1=5", -1]]
    lines = [
        {"type": "asking", "process": "ours.0", "number": 1},
        {"type": "info", "sends": sends, **txn},
        {"type": "final", "key": f"{TOPIC}/0", "seen": [[0, "ours.0/1:0=-5"]]},
        {"type": "final", "key": f"{TOPIC}/1", "seen": []},
    ]
    path = tmp_path / "history"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    report = judge(path, Report(seed=0, workload="bank"))

    assert {anomaly.kind for anomaly in report.anomalies} == {"torn", "bank"}
