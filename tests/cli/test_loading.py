"""What a command loads: a broker that is started for one test must be there at once."""

import re
import subprocess
import sys

import pytest


def loaded_by(*arguments):
    command = [sys.executable, "-X", "importtime", "-m", "dualwrite.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, {name.partition(".")[0] for name in re.findall(r"\| +(\S+)", done.stderr)}


def test_the_broker_loads_no_client_and_no_terminal_library():
    _, packages = loaded_by("broker", "--help")
    assert "dualwrite" in packages
    assert not packages & {"typer", "rich", "pydantic", "confluent_kafka", "sqlalchemy"}


@pytest.mark.parametrize("name", ["broker", "txn", "bench"])
def test_help_names_every_command(name):
    shown, _ = loaded_by("--help")
    assert re.search(rf"\b{name}\b", shown)
    shown, _ = loaded_by(name, "--help")
    assert "--help" in shown
