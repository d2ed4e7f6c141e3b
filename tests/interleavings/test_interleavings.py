"""Random interleavings of the real writers, in a world where time and faults are drawn.

pytest tests/interleavings                   some histories, and every planted bug
pytest tests/interleavings --long            many more
python -m tests.interleavings.history 4711   what happened in one of them
"""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.interleavings.history import run_history
from tests.interleavings.mutants import MUTANTS
from tests.workers import PROCESSES

DEFAULT = 40
LONG = 20_000
BLOCK = 20
SEARCHED = 400  # further histories for a planted bug that its own no longer shows


def run_block(seeds):
    """The histories that went wrong, and how many blocks were written."""
    failed, attempts = [], 0
    for seed in seeds:
        problem, history = run_history(seed)
        attempts += len(history.attempts)
        if problem is not None:
            failed.append((seed, problem))
    return failed, attempts


def check(seeds):
    blocks = [seeds[n : n + BLOCK] for n in range(0, len(seeds), BLOCK)]
    failed, attempts = [], 0
    sys.stdout.write(f"seeds {seeds.start} to {seeds.stop - 1}\n")
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for problems, count in pool.map(run_block, blocks):
            failed += problems
            attempts += count
    sys.stdout.write(f"{attempts} blocks\n")
    assert failed == [], "replay with: python -m tests.interleavings.history SEED"
    assert attempts > 10 * len(seeds)


def test_histories():
    check(range(DEFAULT))


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(10**6, 10**6 + LONG, 1000))
def test_many_more_histories(first):
    check(range(first, first + 1000))


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_caught(name):
    """By the history that is kept with it; by another one if that has changed."""
    mutant = MUTANTS[name]
    for seed in (mutant.seed, *range(SEARCHED)):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            problem, _ = run_history(seed)
        if problem is not None:
            sys.stdout.write(f"{name} is caught by seed {seed}: {problem}\n")
            return
    pytest.fail(f"nobody notices that {name}")


def test_a_seed_is_a_history():
    """Also in another process, where strings and bytes have other hashes."""
    command = [sys.executable, "-m", "tests.interleavings.history", "7"]
    traces = {
        subprocess.run(
            command,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    }

    assert len(traces) == 1
