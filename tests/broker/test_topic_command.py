"""`dualwrite topic` and `dualwrite broker`, as typed."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dualwrite.cli import build_app
from tests.broker.raw_client import batch


@pytest.fixture
def run(bootstrap):
    def call(*arguments):
        return CliRunner().invoke(
            build_app(), ["topic", *arguments, "--bootstrap-servers", bootstrap]
        )

    return call


def test_a_topic_from_creation_to_deletion(run, client, name):
    created = run("create", name, "--partitions", "2", "--config", "retention.ms=1000")
    client.produce(name, batch(b"x", b"y"), partition=1)
    listed = json.loads(run("list", "--json").stdout)
    described = json.loads(run("describe", name, "--json").stdout)
    deleted = run("delete", name)

    assert created.exit_code == deleted.exit_code == 0
    assert {"topic": name, "partitions": 2} in listed
    assert [(row["start"], row["stable"], row["end"]) for row in described] == [
        (0, 0, 0),
        (0, 2, 2),
    ]
    assert name not in run("list").stdout


def test_what_is_refused_and_what_is_misuse_have_their_exit_codes(run, topic, tmp_path):
    config = tmp_path / "client.conf"
    config.write_text("no sign here\n")

    assert run("create", topic).exit_code == 1
    assert run("delete", "nobody-has-this-topic").exit_code == 1
    assert run("create", "x", "--config", "retention").exit_code == 2
    assert run("list", "--command-config", str(config)).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [["--set", "no.such.setting=1"], ["--set", "nothing"], ["--listen", "nowhere"]],
)
def test_a_broker_with_wrong_settings_does_not_start(arguments, tmp_path):
    command = [sys.executable, "-m", "dualwrite.cli", "broker", "--data-dir", str(tmp_path)]

    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60)

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_settings_come_from_a_file_and_from_the_command_line(tmp_path):
    from dualwrite.broker import BrokerProcess

    file = tmp_path / "broker.toml"
    file.write_text('num.partitions = 3\n[log]\nretention.ms = "5000"\n')
    command = [sys.executable, "-m", "dualwrite.cli", "broker", "--config", str(file)]
    with BrokerProcess(tmp_path / "data", command=command, log_retention_bytes=77) as broker:
        admin = ["describe", "t", "--json", "--bootstrap-servers", broker.bootstrap_servers]
        made = CliRunner().invoke(build_app(), ["topic", "create", "t", *admin[3:]])
        rows = json.loads(CliRunner().invoke(build_app(), ["topic", *admin]).stdout)

    assert made.exit_code == 0
    assert len(rows) == 3
