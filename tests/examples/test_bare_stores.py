"""The bare recipes run as they stand, and both sides agree at their end."""

import ast
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(line.split(":", 1) for line in done.stdout.splitlines())


def check(said):
    assert ast.literal_eval(said["rows"].strip()) == ["first", "second"]
    assert ast.literal_eval(said["records"].strip()) == ["first", "second"]
    assert said["recovery before third"].strip() == "committed"
    assert said["recovery at the end"].strip() == "aborted"


def test_bare_sql():
    check(run("bare_sql.py"))


def test_bare_rocksdb():
    check(run("bare_rocksdb.py"))


def test_bare_zookeeper(zookeeper):
    check(run("bare_zookeeper.py", zookeeper.hosts))
