"""Puts a planted bug into a copy of the tree and runs tests there."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutation.mutant import Mutant

ROOT = Path(__file__).parents[2]
PARTS = ("dualwrite", "broker", "adapters", "recipes", "examples", "tests")
SECONDS_MAX = 600


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


def run_tests(tree: Path, tests: tuple[str, ...]) -> int:
    """Run tests of the copy against the sources of the copy; gives pytest's exit code."""
    plugins = ["-p", "no:cacheprovider", "-p", "tests.mutation.without_shrinking"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *tests]
    done = subprocess.run(
        command,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    return done.returncode


def change(file: Path, source: str) -> None:
    """Write a source file and drop what Python has compiled of it: their times may be the same."""
    file.write_text(source)
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def run_mutant(tree: Path, mutant: Mutant) -> str:
    """killed, survived, or broken: pytest could not run at all."""
    file = tree / mutant.file
    source = file.read_text()
    change(file, source.replace(mutant.old, mutant.new, 1))
    try:
        code = run_tests(tree, mutant.tests)
    except subprocess.TimeoutExpired:
        return "killed"  # it hangs, which nobody could overlook
    finally:
        change(file, source)
    return {0: "survived", 1: "killed"}.get(code, "broken")
