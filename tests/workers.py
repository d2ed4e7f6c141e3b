"""The whole suite runs on several workers, a file at a time; a part of it runs in this process.

Most tests wait for other processes (brokers, databases, JVMs): one at a time leaves half of two cores
idle.
"""

import os
import re
from collections import defaultdict

import pytest
from xdist.scheduler import LoadScopeScheduling

DONE = re.compile(r"^seed \d+[,:].*", re.MULTILINE)
"""How a random test says in one line what it did: `seed 7, 60 s: 20 kills, ...`."""
WORKERS_MAX = 4
PROCESSES = max(2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
"""How many a test may keep busy that has much to compute."""
# What takes longest starts first, so that at the end nobody waits for one worker.
LONGEST = (
    "tests/spark",
    "tests/crash/test_matrix.py",
    "tests/simulation",
    "tests/bounce",
    "tests/faults",
)


class ByFile(LoadScopeScheduling):
    """Gives a worker whole files, because their fixtures are; Spark's folder has one JVM."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else nodeid.split("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """None for a run that names files, or whose output somebody reads as it comes."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or config.option.capture == "no":
        return 0
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # by number of tests, which says little
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((n for n, p in enumerate(LONGEST) if item.nodeid.startswith(p)), len(LONGEST))

    items.sort(key=turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a whole run did: what random tests drew and found, and where its time went."""
    if terminalreporter.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    done: list[tuple[str, str]] = []
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            seconds["/".join(report.nodeid.split("/")[:2]).split("::")[0]] += report.duration
            if outcome == "passed":  # what failed is shown whole
                done += [(report.nodeid, line) for line in DONE.findall(report.capstdout)]
    terminalreporter.section("what was drawn and done")
    for name, line in sorted(done):
        terminalreporter.write_line(f"{name}\n    {line}")
    terminalreporter.section("seconds by folder, added up over the workers")
    for folder, total in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{total:7.0f}  {folder}")
