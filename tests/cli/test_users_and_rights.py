"""`dualwrite user` and `dualwrite acl`, as an operator types them, on a broker with logins."""

import json
import subprocess
import sys

import pytest

from dualwrite import ConfigurationError, TwoPhaseProducer
from dualwrite.broker import Broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    users = tmp_path_factory.mktemp("users") / "users.toml"
    users.write_text('[users]\nroot = "root-password"\n')
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "users.file": str(users),
        "super.users": "User:root",
        "transaction.two.phase.commit.enable": "true",
    }
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def command_config(tmp_path_factory):
    path = tmp_path_factory.mktemp("client") / "client.properties"
    path.write_text(
        "# the operator's login\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=root\nsasl.password=root-password\n"
    )
    return path


@pytest.fixture
def run(broker, command_config):
    def run(*arguments, stdin="", code=0):
        done = subprocess.run(
            [sys.executable, "-m", "dualwrite.cli", *arguments,
             "--bootstrap-servers", broker.bootstrap_servers,
             "--command-config", str(command_config), "--json"],
            input=stdin, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr

    return run


def producer(broker, password, **more):
    return TwoPhaseProducer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": password,
            "transactional.id": "orders-0",
            "transaction.two.phase.commit.enable": True,
            **more,
        }
    )


def test_user_gets_the_right_to_prepare(broker, run):
    """From nothing to a two-phase producer: a user, its rights, and away with them again."""
    run("user", "add", "alice", "--password-file", "-", stdin="wonder land\n")
    assert {(u["user"], u["mechanism"]) for u in run("user", "list")} >= {
        ("alice", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512"), ("root", "SCRAM-SHA-256"),
    }  # fmt: skip
    rights = ("--principal", "User:alice", "--transactional-id", "orders-", "--prefixed")
    run("acl", "add", *rights, "--operation", "Write")

    without = producer(broker, "wonder land")
    with pytest.raises(ConfigurationError):
        without.init_transactions()
    without.close()

    added = run("acl", "add", *rights, "--operation", "TwoPhaseCommit")
    assert added[0]["operation"] == "TwoPhaseCommit"
    with_right = producer(broker, "wonder land")
    with_right.init_transactions(keep_prepared_txn=True)
    with_right.close()
    assert [rule["operation"] for rule in run("acl", "list", "--principal", "User:alice")] == [
        "Write", "TwoPhaseCommit",
    ]  # fmt: skip

    removed = run("acl", "remove", "--principal", "User:alice")
    assert len(removed) == 2
    assert run("acl", "list") == []
    run("user", "remove", "alice")
    assert "alice" not in {u["user"] for u in run("user", "list")}


def test_wrong_usage_and_refusals_have_their_exit_codes(run):
    assert "--principal" in run("acl", "add", "--operation", "Read", "--topic", "t", code=2)
    assert "never removed" in run("acl", "remove", code=2)
    assert "no user" in run("user", "remove", "nobody", code=1)
    assert "no such mechanism" in run("user", "add", "x", "--mechanism", "MD5", code=2)
    assert "UNACCEPTABLE_CREDENTIAL" in run(
        "user", "add", "root", "--password-file", "-", stdin="mine", code=1
    )


def test_unreachable_broker_is_an_error_without_a_traceback(tmp_path):
    patience = tmp_path / "client.properties"
    patience.write_text("max.block.ms=500\n")
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite.cli", "user", "list", "--bootstrap-servers",
         "127.0.0.1:1", "--command-config", str(patience)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
