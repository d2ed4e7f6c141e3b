"""`dualwrite bench scaling`, ten times further: a million ids, 10 GB of log.

python -m tests.bench.growth [SECONDS]    takes ten minutes or more, and 20 GB of disk space
"""

import sys

from rich.console import Console

from dualwrite.cli.bench.report import Report
from dualwrite.cli.bench.scaling import Dimension, log_megabytes, run, transactional_ids

FURTHER = (
    Dimension("idle transactional ids", transactional_ids, (1_000, 100_000, 1_000_000)),
    Dimension("MiB in the log", log_megabytes, (100, 1_000, 10_000)),
)


def main() -> None:
    report = Report()
    run(report, float(sys.argv[1]) if len(sys.argv) > 1 else 4.0, FURTHER)
    report.show(Console(width=160))


if __name__ == "__main__":
    main()
