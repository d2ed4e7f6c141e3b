"""Deterministic simulation of the real broker: thousands of histories, each a seed.

pytest tests/simulation                  5,000 histories and every planted bug
pytest tests/simulation --long           200,000 more
python -m tests.simulation.history 4711  what happened in one of them
"""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation.history import Result, run_history
from tests.simulation.mutants import MUTANTS

DEFAULT = 5_000
LONG = 200_000
BLOCK = 500
SEARCHED = 1_000  # further histories for a planted bug that its own no longer shows


@pytest.fixture(scope="module")
def workers():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def run_block(seeds: range) -> tuple[list[Result], int]:
    """The histories that went wrong, and how many transactions there were."""
    results = [run_history(seed) for seed in seeds]
    return [r for r in results if r.violation], sum(r.transactions for r in results)


def check(workers, seeds):
    blocks = [seeds[n : n + 50] for n in range(0, len(seeds), 50)]
    failed, transactions = [], 0
    sys.stdout.write(f"seeds {seeds.start} to {seeds.stop - 1}\n")
    for violations, count in workers.map(run_block, blocks):
        failed += violations
        transactions += count
    sys.stdout.write(f"{transactions} transactions\n")
    assert failed == [], "replay with: python -m tests.simulation.history SEED"
    assert transactions > 2 * len(seeds)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, DEFAULT, BLOCK))
def test_histories(workers, first):
    check(workers, range(first, first + BLOCK))


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", range(10**6, 10**6 + LONG, 10_000))
def test_many_more_histories(workers, first):
    check(workers, range(first, first + 10_000))


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_caught(name):
    """By the history that is kept with it; by another one if that has changed."""
    mutant = MUTANTS[name]
    for seed in (mutant.seed, *range(SEARCHED)):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            result = run_history(seed)
        if result.violation is not None:
            sys.stdout.write(f"{name} is caught by seed {seed}: {result.violation}\n")
            return
    pytest.fail(f"nobody notices that {name}")


def test_there_are_enough_planted_bugs():
    assert len(MUTANTS) >= 25


def test_a_seed_is_a_history():
    """Also in another process, where strings and bytes have other hashes."""
    command = [sys.executable, "-m", "tests.simulation.history", "7"]
    root = Path(__file__).parents[2]
    traces = {
        subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
        ).stdout
        for hashes in ("1", "2", "3")
    }

    assert len(traces) == 1
    assert b"ends with 0" in traces.pop()
