"""The doctor looks at both sides and changes nothing."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.broker import Broker
from tests.cli.operator import as_json, dualwrite
from tests.dualwrite.crashed import CrashedInstance


@pytest.fixture
def to(sqlite_world):
    return (
        "--bootstrap-servers",
        sqlite_world.bootstrap,
        "--store",
        sqlite_world.url,
        "--table",
        sqlite_world.state_table,
        "--json",
    )


def verdicts(checks):
    return {check["about"]: check["verdict"] for check in checks}


def test_healthy_system(sqlite_world, to):
    with sqlite_world.writer() as dw, dw.transaction() as tx:
        sqlite_world.order(tx, 1)

    result = dualwrite("doctor", *to)

    assert result.exit_code == 0
    found = verdicts(as_json(result))
    assert found["two-phase commit (KIP-939)"] == "ok"
    assert found["schema"] == "ok"
    assert "bad" not in found.values()


def test_transaction_in_doubt_is_named_with_its_verdict(sqlite_world, to):
    crashed = CrashedInstance(sqlite_world, f"{sqlite_world.app}-0").prepare(1).decide()
    crashed.die()

    checks = as_json(dualwrite("doctor", *to))

    (found,) = [check for check in checks if check["about"] == crashed.transactional_id]
    assert found["result"] == "in doubt, recovery would commit"
    assert dualwrite("txn", "resolve", crashed.transactional_id, *to).exit_code == 0


def test_missing_tables_are_bad(sqlite_world, to):
    result = dualwrite("doctor", *to[:4], "--table", "nowhere", "--json")

    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("policy", "verdict"), [("compact", "ok"), ("delete", "bad"), ("compact,delete", "bad")]
)
def test_a_decision_topic_that_deletes_is_bad(policy, verdict):
    """Spark's sinks keep there what is decided, for as long as a batch may come again."""
    topic = "__dualwrite_decisions.orders"
    with Broker() as broker:
        servers = broker.bootstrap_servers
        made = NewTopic(topic, 1, config={"cleanup.policy": policy})
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([made])[topic].result(20)
        result = dualwrite("doctor", "--bootstrap-servers", servers, "--json")

    assert verdicts(as_json(result))[f"decisions: cleanup.policy of {topic}"] == verdict
    assert result.exit_code == (1 if verdict == "bad" else 0)


def test_unreachable_parts_are_findings(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nmax.block.ms=300\n")

    result = dualwrite("doctor", "--command-config", file, "--json")

    assert result.exit_code == 1
    assert verdicts(as_json(result))["broker"] == "bad"
