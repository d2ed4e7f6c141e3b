"""Which planted bugs are not caught any more by the seed that is kept with them, and which seeds catch them.

python -m tests.simulation.kept_seeds [--write]       --write puts the fresh seeds into the sources
python -m tests.interleavings.kept_seeds [--write]    the same for the bugs of the writers
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.history import run_history
from tests.simulation.mutants import MUTANTS
from tests.simulation.planted import Mutant, is_noticed

SEARCHED = 10_000

Run = Callable[[int], str | None]  # a seed's violation


class Catch(NamedTuple):
    """A seed whose history notices a planted bug, and what it says."""

    seed: int
    violation: str


def catch(mutant: Mutant, run: Run, searched: int) -> Catch | None:
    """By the history that is kept with it; by another one if that has changed."""
    for seed in (mutant.seed, *range(searched)):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            violation = run(seed)
        # What happens without the bug as well is another one's doing.
        if violation is not None and is_noticed(violation) and run(seed) is None:
            return Catch(seed, violation)
    return None


def write(mutant: Mutant, seed: int) -> None:
    """Put a seed into the source of a planted bug."""
    source = inspect.getsourcefile(mutant.plant)
    assert source is not None
    path = Path(source)
    text, count = re.subn(
        rf"@mutant\(seed=\d+\)\ndef {mutant.name}\(",
        f"@mutant(seed={seed})\ndef {mutant.name}(",
        path.read_text(),
    )
    assert count == 1
    path.write_text(text)


def refresh(mutants: Mapping[str, Mutant], run: Run, *, is_write: bool) -> int:
    """Say what is stale, and mend it if `is_write`; how many are stale afterwards."""
    stale = 0
    for mutant in mutants.values():
        found = catch(mutant, run, SEARCHED)
        if found is not None and found.seed == mutant.seed:
            continue
        if found is None:
            sys.stdout.write(f"{mutant.name}: nobody notices it in {SEARCHED} histories\n")
        else:
            sys.stdout.write(
                f"{mutant.name}: {mutant.seed} is stale, {found.seed} is not: {found.violation}\n"
            )
            if is_write:
                write(mutant, found.seed)
        stale += found is None or not is_write
        sys.stdout.flush()
    sys.stdout.write(f"{len(mutants)} planted bugs, {stale} stale seeds\n")
    return stale


def main(mutants: Mapping[str, Mutant], run: Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put fresh seeds into the sources")
    options = parser.parse_args()
    raise SystemExit(1 if refresh(mutants, run, is_write=options.write) else 0)


def violation_of(seed: int) -> str | None:
    return run_history(seed).violation


if __name__ == "__main__":
    main(MUTANTS, violation_of)
