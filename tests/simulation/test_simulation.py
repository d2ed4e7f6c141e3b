"""Deterministic simulation of the real broker: thousands of histories, each a seed.

pytest tests/simulation                               5,000 histories and every planted bug
pytest tests/simulation --long                        200,000 more
python -m tests.simulation.history 4711               what happened in one of them
python -m tests.simulation.history --seeds 7000:9000  as many as one likes
python -m tests.simulation.coverage 400               what of the coordinator they run through
python -m tests.simulation.kept_seeds                 which planted bugs have stale seeds
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import many
from tests.simulation.kept_seeds import catch, refresh, violation_of
from tests.simulation.many import run_seeds, seeds_of
from tests.simulation.mutants import MUTANTS
from tests.workers import PROCESSES

DEFAULT = 5_000
LONG = 200_000
BLOCK = 500
SEARCHED = 1_000  # further histories for a planted bug that its own shows no more


@pytest.fixture(scope="module")
def workers():
    with many.workers(PROCESSES) as pool:
        yield pool


def check(workers, seeds):
    sys.stdout.write(f"seeds {seeds.start} to {seeds.stop - 1}\n")
    failed, transactions = run_seeds(workers, seeds)
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
    found = catch(MUTANTS[name], violation_of, SEARCHED)
    assert found is not None, f"nobody notices that {name}"
    sys.stdout.write(f"{name} is caught by seed {found.seed}: {found.violation}\n")


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_kept_seed_is_stale():
    """A change of the broker may shift histories, and the default run looks for others then."""
    assert refresh(MUTANTS, violation_of, is_write=False) == 0, (
        "mend it with: python -m tests.simulation.kept_seeds --write"
    )


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


def run_module(*words):
    command = [sys.executable, "-m", "tests.simulation.history", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_seeds_by_the_range():
    assert [*seeds_of("7:20:6")] == [7, 13, 19]
    for words in ("7", "7:7", "a:b"):
        with pytest.raises(ValueError):
            seeds_of(words)

    done = run_module("--seeds", "7:20:6")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seeds 7 to 19, step 6\n")
    assert "3 histories, " in done.stdout
    assert ", 0 violations\n" in done.stdout


def test_a_violation_is_told_with_its_seed(monkeypatch, capsys):
    """And the seeds behind it are run all the same."""
    name = next(iter(MUTANTS))
    seed = MUTANTS[name].seed

    class HereAndNow:
        map = staticmethod(map)

    MUTANTS[name].plant(monkeypatch)
    failed, _ = run_seeds(HereAndNow(), range(seed, seed + 2))

    assert seed in [result.seed for result in failed]
    assert f"seed {seed}: " in capsys.readouterr().out
