"""Plants every bug of the list and says which of them the tests have found.

    python -m tests.mutation                 all of them
    python -m tests.mutation epoch COMMIT    those whose name contains one of the words

The tree is copied; the checkout itself is never touched. Tests that fail without any bug prove nothing:
each selection of tests first runs on the healthy tree.
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutation.mutants import MUTANTS
from tests.mutation.planting import KILLED, KILLED_HUNG, copy_tree, judge


def main() -> int:
    words = sys.argv[1:]
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="dualwrite-mutation-") as directory:
        tree = copy_tree(Path(directory) / "tree")
        started = time.monotonic()
        for mutant, verdict in judge(tree, chosen):
            seconds = time.monotonic() - started
            print(f"{verdict:13} {seconds:6.1f} s  {mutant.file:40} {mutant.name}", flush=True)
            verdicts[verdict] += 1
            started = time.monotonic()
    killed = verdicts[KILLED] + verdicts[KILLED_HUNG]
    print(f"{killed} of {len(chosen)} killed, {verdicts[KILLED_HUNG]} of them hung")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
