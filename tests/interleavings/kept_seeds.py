"""Which planted bugs of the writers have kept seeds that catch them no more.

python -m tests.interleavings.kept_seeds [--write]    --write puts fresh seeds into the sources
"""

from tests.interleavings.history import run_history
from tests.interleavings.mutants import MUTANTS
from tests.simulation.kept_seeds import main


def violation_of(seed: int) -> str | None:
    problem: str | None
    problem, _ = run_history(seed)
    return problem


if __name__ == "__main__":
    main(MUTANTS, violation_of)
