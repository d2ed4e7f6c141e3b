"""Puts a planted bug into a copy of the tree and runs tests there."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutant import Mutant

ROOT = Path(__file__).parents[2]
PARTS = ("dualwrite", "broker", "adapters", "recipes", "examples", "tests")
SECONDS_MAX = 600
HUNG = re.compile(r"from pytest-timeout|\+ Timeout \+")
KILLED, KILLED_HUNG = "killed", "killed (hung)"


@dataclass(frozen=True)
class Run:
    """How tests ended: pytest's exit code, None if they had to be ended, and what they printed."""

    code: int | None
    output: str

    @property
    def verdict(self) -> str:
        """What it says of a planted bug; broken if pytest could not run at all."""
        match self.code:
            case 0:
                return "survived"
            case None:
                return KILLED_HUNG
            case 1:
                return KILLED_HUNG if HUNG.search(self.output) else KILLED
        return "broken"


def copy_tree(target: Path) -> Path:
    """Copy sources and tests; the links between the source folders stay links."""
    target.mkdir()
    for part in PARTS:
        if (ROOT / part).exists():
            shutil.copytree(
                ROOT / part,
                target / part,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def run_tests(tree: Path, tests: tuple[str, ...], seconds_max: float = SECONDS_MAX) -> Run:
    """Run tests of the copy against the sources of the copy."""
    plugins = ["-p", "no:cacheprovider", "-p", "tests.mutation.without_shrinking"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *tests]
    # A file, not a pipe: a server that a failed test left behind would keep the pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)  # the servers of its tests, too
            process.wait()
        output.seek(0)
        return Run(code, output.read())


def change(file: Path, source: str) -> None:
    """Write a source file and drop what Python has compiled of it: their times may be the same."""
    file.write_text(source)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def run_mutant(tree: Path, mutant: Mutant) -> str:
    """The verdict of its tests on one planted bug."""
    file = tree / mutant.file
    source = file.read_text()
    change(file, source.replace(mutant.old, mutant.new, 1))
    try:
        return run_tests(tree, mutant.tests).verdict
    finally:
        change(file, source)


def judge(tree: Path, mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, str]]:
    """The verdict on each; "unsound" if its tests do not pass without it: they would kill anything."""
    healthy: dict[tuple[str, ...], Run] = {}
    for mutant in mutants:
        if mutant.tests not in healthy:
            run = healthy[mutant.tests] = run_tests(tree, mutant.tests)
            if run.code != 0:
                print(run.output)
        yield mutant, "unsound" if healthy[mutant.tests].code != 0 else run_mutant(tree, mutant)
