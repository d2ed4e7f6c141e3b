"""The operator's commands never guess: claim first, then read, then end."""

import pytest
from sqlalchemy import text

from dualwrite import Fenced
from tests.cli.operator import as_json, dualwrite
from tests.dualwrite.crashed import FOREIGN_OWNER, CrashedInstance


@pytest.fixture
def to(sqlite_world):
    """Options that lead to the world of the test."""
    return (
        "--bootstrap-servers",
        sqlite_world.bootstrap,
        "--store",
        sqlite_world.url,
        "--table",
        sqlite_world.state_table,
    )


@pytest.fixture
def decided(sqlite_world):
    crashed = CrashedInstance(sqlite_world, f"{sqlite_world.app}-0").prepare(1).decide()
    crashed.die()
    return crashed


@pytest.fixture
def undecided(sqlite_world):
    crashed = CrashedInstance(sqlite_world, f"{sqlite_world.app}-0").prepare(1)
    crashed.die()
    return crashed


def test_list_and_describe(sqlite_world, to, decided):
    listed = as_json(
        dualwrite("txn", "list", *to[:2], "--pattern", f"{sqlite_world.app}-[0-9]+", "--json")
    )
    described = as_json(dualwrite("txn", "describe", decided.transactional_id, *to[:2], "--json"))

    assert [(e["transactional_id"], e["state"]) for e in listed] == [
        (decided.transactional_id, "Ongoing")
    ]
    assert listed[0]["partitions"] == [f"{sqlite_world.topic}-0"]
    assert listed[0]["start_time_ms"] == described["start_time_ms"] > 0
    assert described["txn"] == str(decided.state)
    assert described["two_phase"] is True
    assert described["partitions"] == [f"{sqlite_world.topic}-0"]


def test_tables_are_printed_without_json(sqlite_world, to, decided):
    result = dualwrite("txn", "list", *to[:2], "--pattern", f"{sqlite_world.app}-[0-9]+")

    assert result.exit_code == 0
    assert "Ongoing" in result.stdout
    assert "open for" in result.stdout

    result = dualwrite("txn", "describe", decided.transactional_id, *to[:2])

    assert result.exit_code == 0
    assert "began" in result.stdout
    assert "UTC" in result.stdout


def test_describe_of_an_unknown_id_is_refused(to):
    assert dualwrite("txn", "describe", "nobody", *to[:2]).exit_code == 1


def test_explain_says_commit_and_why_and_changes_nothing(sqlite_world, to, decided):
    before = sqlite_world.store.row(decided.transactional_id)

    found = as_json(dualwrite("txn", "explain", decided.transactional_id, *to, "--json"))

    assert found["advice"] == "commit"
    assert any(str(decided.state) in reason for reason in found["reasons"])
    (partition,) = found["partitions"]
    assert partition["last_stable_offset"] < partition["high_watermark"]
    assert sqlite_world.store.row(decided.transactional_id) == before


def test_explain_says_abort(to, undecided):
    result = dualwrite("txn", "explain", undecided.transactional_id, *to)

    assert result.exit_code == 0
    assert f"{undecided.transactional_id}: abort" in result.stdout
    assert f"dualwrite txn resolve {undecided.transactional_id}" in result.stdout


def test_explain_says_wait_for_a_live_owner(sqlite_world, to, decided):
    sqlite_world.store.lease(FOREIGN_OWNER, 60)

    found = as_json(dualwrite("txn", "explain", decided.transactional_id, *to, "--json"))

    assert found["advice"] == "wait"


def test_dry_run_changes_nothing(sqlite_world, to, decided):
    result = dualwrite("txn", "resolve", decided.transactional_id, *to, "--dry-run")

    assert result.exit_code == 0
    assert "commit" in result.stdout
    assert sqlite_world.records() == []


def test_resolve_commits_what_the_database_has_committed(sqlite_world, to, decided):
    result = dualwrite("txn", "resolve", decided.transactional_id, *to, "--json")

    assert as_json(result)["done"] == "commit"
    sqlite_world.assert_agree([1])
    again = dualwrite("txn", "resolve", decided.transactional_id, *to, "--json")
    assert as_json(again)["done"] == "nothing"


def test_resolve_aborts_what_was_never_decided(sqlite_world, to, undecided):
    assert as_json(dualwrite("txn", "resolve", undecided.transactional_id, *to, "--json")) == {
        "transactional_id": undecided.transactional_id,
        "done": "abort",
    }
    with pytest.raises(Fenced):
        undecided.write()
    undecided.local.rollback()
    sqlite_world.assert_agree([])


def test_resolve_leaves_a_live_owner_alone_unless_told(sqlite_world, to, decided):
    sqlite_world.store.lease(FOREIGN_OWNER, 60)

    assert dualwrite("txn", "resolve", decided.transactional_id, *to).exit_code == 1
    assert sqlite_world.records() == []
    assert dualwrite("txn", "resolve", decided.transactional_id, *to, "--now").exit_code == 0
    sqlite_world.assert_agree([1])


def test_force_terminate_refuses_when_the_database_says_commit(sqlite_world, to, decided):
    result = dualwrite("txn", "force-terminate", decided.transactional_id, *to)

    assert result.exit_code == 1
    assert "refused" in result.output
    assert dualwrite("txn", "resolve", decided.transactional_id, *to).exit_code == 0
    sqlite_world.assert_agree([1])


def test_heuristic_end_is_written_down_before_it_is_done(sqlite_world, to, decided):
    name = decided.transactional_id

    assert dualwrite("txn", "force-terminate", name, *to, "--heuristic").exit_code == 2
    done = dualwrite(
        "txn", "force-terminate", name, *to, "--heuristic", "--reason", "readers stand still"
    )

    assert done.exit_code == 0
    (entry,) = sqlite_world.store.heuristics(name)
    assert (entry.state, entry.reason) == (decided.state, "readers stand still")
    assert sqlite_world.records() == []
    found = dualwrite("txn", "explain", name, *to, "--json")
    assert found.exit_code == 1
    assert as_json(found)["advice"] == "look"


def test_force_terminate_aborts_what_was_never_decided(sqlite_world, to, undecided):
    assert dualwrite("txn", "force-terminate", undecided.transactional_id, *to).exit_code == 0
    assert dualwrite("txn", "force-terminate", undecided.transactional_id, *to).exit_code == 1
    sqlite_world.assert_agree([])


def test_another_cluster_s_id_is_left_alone_and_the_operator_told_what_to_do(
    sqlite_world, to, undecided
):
    with sqlite_world.engine.begin() as connection:
        connection.execute(text(f"UPDATE {sqlite_world.state_table} SET cluster_id = 'elsewhere'"))
    before = sqlite_world.store.row(undecided.transactional_id)

    for command in ("explain", "resolve", "force-terminate"):
        result = dualwrite("txn", command, undecided.transactional_id, *to)
        assert result.exit_code == 1, command
        assert "bound to Kafka cluster 'elsewhere'" in result.output
        assert "--bootstrap-servers" in result.output

    assert sqlite_world.store.row(undecided.transactional_id) == before
    described = as_json(dualwrite("txn", "describe", undecided.transactional_id, *to[:2], "--json"))
    assert described["state"] == "Ongoing"


def test_recover_sweeps_an_app(sqlite_world, to, decided):
    other = CrashedInstance(sqlite_world, f"{sqlite_world.app}-3").prepare(2)
    other.die()

    ended = as_json(dualwrite("recover", "--app", sqlite_world.app, *to, "--json"))

    assert {(e["transactional_id"], e["ended_by"]) for e in ended} == {
        (decided.transactional_id, "commit"),
        (other.transactional_id, "abort"),
    }
    sqlite_world.assert_agree([1])
    assert as_json(dualwrite("recover", "--app", sqlite_world.app, *to, "--json")) == []


def test_settings_come_from_a_file(sqlite_world, to, decided, tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(f"# the cluster\nbootstrap.servers = {sqlite_world.bootstrap}\n")

    found = dualwrite("txn", "describe", decided.transactional_id, "--command-config", file)

    assert found.exit_code == 0
