"""The pages of traps and of reliability name tests that exist."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| ([PTRSEA]-?\d+) \| (.+) \|$", (HERE / "TRAPS.md").read_text(), re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py::\w+)`")
NAMED = [(trap, name) for trap, cell in ROWS for name in TEST.findall(cell)]
FOUND = [
    (line.split(" | ")[0].strip("| "), name)
    for line in (HERE / "RELIABILITY.md").read_text().splitlines()
    for name in TEST.findall(line)
]


def test_every_trap_has_a_row():
    wanted = {f"P{n}" for n in range(1, 27)} | {f"T{n}" for n in range(1, 31)}
    wanted |= {f"T-{n}" for n in range(1, 20)} | {f"R{n}" for n in range(1, 19)}
    wanted |= {f"S{n}" for n in range(1, 20)} | {f"E{n}" for n in range(1, 16)}
    wanted |= {f"A{n}" for n in range(1, 11)}

    assert {trap for trap, _ in ROWS} == wanted


@pytest.mark.parametrize(("trap", "name"), [*NAMED, *FOUND], ids=lambda value: str(value))
def test_the_test_of_a_trap_or_of_what_was_found_exists(trap, name):
    path, _, function = name.partition("::")

    assert re.search(rf"def {function}\(", (HERE / path).read_text())
