"""Every command on README.md and tests/RELIABILITY.md can be typed as it stands there.

Paths and modules exist, and so does each option, in the program that it is given to. Words in capitals
are places for values.
"""

import importlib.util
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.broker import test_random_requests
from tests.cli.operator import APP
from tests.faults import test_power_loss, test_syscalls
from tests.history.planted import PLANTED
from tests.interleavings import mutants as interleavings_mutants
from tests.interleavings import test_interleavings
from tests.mutation import mutants as mutation_mutants
from tests.simulation import mutants as simulation_mutants

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "tests/RELIABILITY.md")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
COUNT = re.compile(r"(?:^|: )([\d,]+) (?:cases|tests)\b(?! of)")
"""`N cases` as a row's size, and not `12 cases of about 75 calls`."""
SIZES = {
    "history checker": [(r"([\d,]+) plants", lambda: len(PLANTED))],
    "simulation of": [(r"([\d,]+) planted bugs", lambda: len(simulation_mutants.MUTANTS))],
    "interleavings of": [
        (r"([\d,]+) histories", lambda: test_interleavings.DEFAULT),
        (r"([\d,]+) planted bugs", lambda: len(interleavings_mutants.MUTANTS)),
    ],
    "power loss of the broker": [(r"([\d,]+) images", lambda: test_power_loss.IMAGES)],
    "every durable system call": [(r"([\d,]+) cases of", lambda: test_syscalls.SAMPLE)],
    "random valid requests": [(r"([\d,]+) seeds", lambda: len(test_random_requests.SEEDS))],
    "planted bugs in": [(r"([\d,]+) bugs", lambda: len(mutation_mutants.MUTANTS))],
}
"""What a row, by its first words, says in its third column of the default run, and the truth."""


def commands(text):
    """What stands in backticks, and the lines of shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        yield from (part.strip() for part in line.partition(" #")[0].split("&&"))
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def pages(prefix):
    return [
        pytest.param(command, id=f"{page}: {command}")
        for page in PAGES
        for command in dict.fromkeys(commands((ROOT / page).read_text()))
        if command == prefix.strip() or command.startswith(prefix)
    ]


def paths_of(words):
    return [word for word in words if "/" in word and not word.startswith("-")]


@pytest.fixture(scope="module")
def options_of_pytest():
    command = [sys.executable, "-m", "pytest", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {*OPTION.findall(done.stdout)}


@pytest.mark.parametrize("command", pages("pytest "))
def test_pytest(command, options_of_pytest):
    for path in paths_of(shlex.split(command)):
        assert (ROOT / path.partition("::")[0]).exists(), path
    assert {*OPTION.findall(command)} <= options_of_pytest


def source_of(module):
    """Of what `python -m` would run."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    if spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{module}.__main__")
    return Path(spec.origin).read_text()


@pytest.mark.parametrize("command", pages("python -m "))
def test_python_module(command):
    """Options are looked for in the source: some modules need what is not installed everywhere."""
    module = command.split()[2]
    source = source_of(module)

    assert '__name__ == "__main__"' in source or module == "tests.mutation"
    for option in OPTION.findall(command):
        assert f'"{option}"' in source, option


def help_of(*words):
    """What `dualwrite WORDS --help` prints, on a line that is long enough for whole words."""
    done = CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(APP, [*words, "--help"])
    return done.output if done.exit_code == 0 else ""


def missing(command):
    """What of it the command line does not know. `txn list, describe` are two commands."""
    first, *others = command.replace("[", " ").replace("]", " ").split(", ")
    names = [*takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), first.split()[1:])]
    path = [name for n, name in enumerate(names) if f" {name} " in help_of(*names[:n])]
    lost = [other for other in others if f" {other} " not in help_of(*names[:-1])]
    # A word behind a command may be a value that its help lists.
    known = re.findall("[a-z-]+", help_of(*path))
    rest = [name for name in names if name not in path] + OPTION.findall(first)
    return lost + [word for word in rest if word not in known]


@pytest.mark.parametrize("command", pages("dualwrite "))
def test_dualwrite(command):
    assert missing(command) == []


def test_what_the_command_line_does_not_know_is_noticed():
    assert missing("dualwrite txn list, describe") == []
    assert missing("dualwrite no-such") == ["no-such"]
    assert missing("dualwrite bench no-such --seconds 3") == ["no-such"]
    assert missing("dualwrite txn list, no-such") == ["no-such"]
    assert missing("dualwrite broker --no-such") == ["--no-such"]


@pytest.mark.parametrize("option", pages("--"))
def test_an_option_alone_is_one_of_the_tests(option, options_of_pytest):
    """Of pytest, or of a module that one of the pages names."""
    modules = {c.split()[2] for page in PAGES for c in commands((ROOT / page).read_text())
               if c.startswith("python -m ")}  # fmt: skip
    sources = "".join(map(source_of, modules))
    for name in OPTION.findall(option):
        assert name in options_of_pytest or f'"{name}"' in sources


@pytest.mark.parametrize("path", pages("tests/"))
def test_a_path_alone_exists(path):
    assert (ROOT / path.partition("::")[0]).exists()


def rows_of_families():
    for line in (ROOT / "tests/RELIABILITY.md").read_text().splitlines():
        cells = [cell.strip(" |") for cell in line.split(" | ")]
        if len(cells) >= 4:
            yield cells


def counted_rows():
    """The sizes that the table tells in cases, each with the paths that its pytest command runs."""
    for cells in rows_of_families():
        if not (count := COUNT.search(cells[2])):
            continue
        command = next((c for c in commands(cells[1]) if c.startswith("pytest ")), None)
        if command is not None:
            paths = [p for p in paths_of(shlex.split(command)) if p.startswith("tests/")]
            yield paths, int(count[1].replace(",", ""))


@pytest.mark.parametrize("family", SIZES)
def test_sizes_are_those_of_the_tests(family):
    (row,) = (cells for cells in rows_of_families() if cells[0].startswith(family))
    for pattern, size in SIZES[family]:
        found = re.search(pattern, row[2])
        assert found is not None, f"{pattern} is not in: {row[2]}"
        assert int(found[1].replace(",", "")) == size()


def test_counts_are_those_of_what_is_run():
    rows = [*counted_rows()]
    wanted = sorted({path for paths, _ in rows for path in paths})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not long"]
    done = subprocess.run(
        [*command, *wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    collected = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]

    assert rows
    for paths, count in rows:
        there = sum(any(Path(file).is_relative_to(p) for p in paths) for file in collected)
        print(f"{count} of {there}: {' '.join(paths)}")
        assert count == there, paths
