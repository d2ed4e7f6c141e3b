"""Foreign clients and servers, built from their registries where the machine has the tools."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dualwrite.cli.bench import apache_kafka

HERE = Path(__file__).parent
SECONDS_MAX = 240


def need(*programs: str) -> None:
    """Skip the test unless every program is installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def fetch(command: list[str], cwd: Path, what: str) -> None:
    """Run a package client; a registry that can't be reached skips the test."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} did not arrive in {SECONDS_MAX} s")
    if done.returncode != 0:
        pytest.skip(f"{what} can't be had: {(done.stdout + done.stderr)[-400:]}")


def maven_jars(directory: Path, *artifacts: str) -> Path:
    """The jars, or a skipped test where they can't be had."""
    try:
        return apache_kafka.maven_jars(directory, *artifacts)
    except apache_kafka.KafkaUnavailable as missing:
        pytest.skip(str(missing))


def steps(command: list[str], cwd: Path) -> dict[str, Any]:
    """Run a conversation and return its steps; what it wrote to stderr explains a failure."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["step"]: line["values"] for line in lines}
