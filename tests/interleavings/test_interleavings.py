"""Random interleavings of the real writers, in a world where time and faults are drawn.

pytest tests/interleavings                   some histories, and every planted bug
pytest tests/interleavings --long            many more
python -m tests.interleavings.history 4711   what happened in one of them
python -m tests.interleavings.kept_seeds     which planted bugs have stale seeds
"""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.interleavings.history import run_history
from tests.interleavings.kept_seeds import violation_of
from tests.interleavings.mutants import MUTANTS
from tests.simulation.kept_seeds import catch, refresh
from tests.workers import PROCESSES

DEFAULT = 200
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
    found = catch(MUTANTS[name], violation_of, SEARCHED)
    assert found is not None, f"nobody notices that {name}"
    sys.stdout.write(f"{name} is caught by seed {found.seed}: {found.violation}\n")


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_kept_seed_is_stale():
    """A change of the writers may shift histories, and the default run looks for others then."""
    assert refresh(MUTANTS, violation_of, is_write=False) == 0, (
        "mend it with: python -m tests.interleavings.kept_seeds --write"
    )


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
