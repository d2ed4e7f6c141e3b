"""Plants every bug of the list and says which of them the tests have found.

    python -m tests.mutation                 all of them
    python -m tests.mutation epoch COMMIT    those whose name contains one of the words

The tree is copied; the checkout itself is never touched.
"""

import sys
import tempfile
import time
from pathlib import Path

from tests.mutation.mutants import MUTANTS
from tests.mutation.planting import copy_tree, run_mutant


def main() -> int:
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="dualwrite-mutation-") as directory:
        tree = copy_tree(Path(directory) / "tree")
        for mutant in chosen:
            started = time.monotonic()
            verdict = run_mutant(tree, mutant)
            seconds = time.monotonic() - started
            print(f"{verdict:9} {seconds:6.1f} s  {mutant.file:40} {mutant.name}", flush=True)
            if verdict != "killed":
                survivors.append(mutant)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
