"""What of the coordinator the simulation alone runs through, by line and branch.

python -m tests.simulation.coverage [HISTORIES]           of the seeds from 0 on
python -m tests.simulation.coverage --seeds A:B[:STEP]    2:2800:7 are those whose clients err

It needs coverage: pip install --group dev
"""

import argparse
import sys

COORDINATOR = "dualwrite.broker.transactions"


def main() -> None:
    parser = argparse.ArgumentParser()
    what = parser.add_mutually_exclusive_group()
    what.add_argument("histories", type=int, nargs="?", default=400)
    what.add_argument("--seeds", metavar="A:B[:STEP]", help="B excluded")
    options = parser.parse_args()
    try:
        from coverage import Coverage
    except ImportError:
        parser.exit(2, "coverage is not installed: pip install --group dev\n")
    found = Coverage(branch=True, source_pkgs=[COORDINATOR], config_file=False, data_file=None)
    found.start()  # before anything of the broker is imported: what runs on import counts, too
    from tests.simulation.history import run_history
    from tests.simulation.many import seeds_of

    seeds = seeds_of(options.seeds or f"0:{options.histories}")
    results = [run_history(seed) for seed in seeds]
    found.stop()
    violations = [result for result in results if result.violation]
    for result in violations:
        sys.stdout.write(f"seed {result.seed}: {result.violation}\n")
    sys.stdout.write(
        f"seeds {seeds[0]} to {seeds[-1]}, step {seeds.step}: {len(results)} histories,"
        f" {sum(result.transactions for result in results)} transactions,"
        f" {len(violations)} violations\n"
    )
    found.report(show_missing=True, file=sys.stdout)
    raise SystemExit(1 if violations else 0)


if __name__ == "__main__":
    main()
