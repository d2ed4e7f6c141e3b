"""The doctor looks at both sides and changes nothing."""

import pytest

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


def test_unreachable_parts_are_findings(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\nmax.block.ms=300\n")

    result = dualwrite("doctor", "--command-config", file, "--json")

    assert result.exit_code == 1
    assert verdicts(as_json(result))["broker"] == "bad"
