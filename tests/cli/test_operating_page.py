"""Every command of the operator's page works as it stands there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.broker import Broker
from tests.cli.operator import dualwrite
from tests.dualwrite.crashed import CrashedInstance

PAGE = (Path(__file__).parents[2] / "broker" / "OPERATING.md").read_text()
COMMANDS = sorted(set(re.findall(r"`((?:dualwrite|python -m) [^`]+)`", PAGE)))
# They serve until they are stopped; tests/console starts both.
SERVING = ("dualwrite broker", "dualwrite console")
ON_TRANSACTIONS = [c for c in COMMANDS if re.match(r"dualwrite (txn|recover|doctor)", c)]


def filled_in(command, **words):
    """The words of a command, with those that stand for something replaced."""
    return [str(words.get(word, word)) for word in shlex.split(command)]


@pytest.mark.parametrize("command", ON_TRANSACTIONS)
def test_on_a_stuck_transaction(sqlite_world, command):
    name = f"{sqlite_world.app}-0"
    CrashedInstance(sqlite_world, name).prepare(1).decide().die()
    words = {"ID": name, "URL": sqlite_world.url, "APP": sqlite_world.app, "TEXT": "because"}
    to = ["--bootstrap-servers", sqlite_world.bootstrap]
    if "URL" in command:
        to += ["--table", sqlite_world.state_table]

    result = dualwrite(*filled_in(command, **words)[1:], *to)

    assert result.exit_code == 0, result.output
    dualwrite("txn", "resolve", name, "--store", sqlite_world.url, *to)


def test_giving_a_right(tmp_path):
    (command,) = [c for c in COMMANDS if c.startswith("dualwrite acl")]
    users, login = tmp_path / "users.toml", tmp_path / "client.properties"
    users.write_text('[users]\nroot = "secret"\n')
    users.chmod(0o600)
    login.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=root\nsasl.password=secret\n"
    )
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:root",
    }
    with Broker(settings=settings) as broker:
        to = ("--bootstrap-servers", broker.bootstrap_servers, "--command-config", login)

        assert dualwrite(*filled_in(command, ID="orders-0")[1:], *to).exit_code == 0
        assert "TwoPhaseCommit" in dualwrite("acl", "list", "--json", *to).output


@pytest.mark.parametrize("command", [c for c in COMMANDS if "repair" in c])
def test_repairing_a_stopped_broker(tmp_path, command):
    with Broker(data_dir=tmp_path):
        pass
    done = subprocess.run(
        [sys.executable, *filled_in(command, DATA_DIR=tmp_path)[1:]],
        capture_output=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    with Broker(data_dir=tmp_path) as broker:
        assert broker.bootstrap_servers


def test_every_command_is_tried():
    tried = [*ON_TRANSACTIONS, *(c for c in COMMANDS if "acl add" in c or "repair" in c)]

    assert len(ON_TRANSACTIONS) >= 6
    assert [c for c in COMMANDS if c not in tried and not c.startswith(SERVING)] == []


def test_settings_that_the_page_names_exist():
    from dualwrite.broker.settings import SETTINGS

    named = set(re.findall(r"`((?:max|transaction|transactional)\.[a-z.]+)`", PAGE))

    assert named
    assert named <= set(SETTINGS)


def test_metrics_that_the_page_names_exist():
    with Broker(http_port=0) as broker:
        text = broker.metrics_text().decode()

    named = set(re.findall(r"`(dualwrite_[a-z_]+)`", PAGE))
    assert named
    assert all(f"# TYPE {name} " in text for name in named)
