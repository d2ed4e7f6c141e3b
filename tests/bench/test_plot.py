"""The picture of a benchmark says what its rows say."""

import io
import json
import math
import re
from collections import defaultdict
from xml.etree import ElementTree

import pytest
from rich.console import Console

from dualwrite.cli.bench.plot import AXIS_WIDTH, BAR_WIDTH, CHARACTER, draw
from dualwrite.cli.bench.report import TOO_SHORT, WITH_BARS, Report, Row

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows, notes=()):
    return ElementTree.fromstring(draw(Report(list(rows), list(notes))))


def row(work, value, ratio=None, unit="ms", **fields):
    return Row(section="s", work=work, value=value, unit=unit, ratio=ratio, **fields)


def test_every_row_is_written_out():
    found = drawn(
        row("a <b> & c", 2, ratio=0.5, against="the floor", goal="<= 4x", note="on tape"),
        notes=["left out"],
    )

    texts = {element.text for element in found.iter(f"{SVG}text")}

    assert {"s", "a <b> & c", "2 ms", "0.50x the floor; goal <= 4x; on tape", "left out"} <= texts


def test_bars_are_as_long_as_their_values_within_a_unit():
    found = drawn(row("one", 10), row("two", 40), row("other", 5, unit="MiB"))

    bars = [
        float(e.get("width")) for e in found.iter(f"{SVG}rect") if "bar" in (e.get("class") or "")
    ]

    assert bars == [BAR_WIDTH / 4, BAR_WIDTH, BAR_WIDTH]


def test_ratios_lie_around_one():
    ratios = [1 / 1000, 0.5, 1, 2, 1000]
    found = drawn(*(row(str(ratio), 1, ratio=ratio) for ratio in ratios))

    places = [float(e.get("cx")) for e in found.iter(f"{SVG}circle")]

    middle, doubling = AXIS_WIDTH / 2, AXIS_WIDTH / 8
    left = places[0]
    assert [place - left for place in places] == [
        0, middle - doubling, middle, middle + doubling, AXIS_WIDTH
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "ratio", "kinds"),
    [
        ("txn/s", 2, ["bar more", "better"]),
        ("txn/s", 0.5, ["bar more", "worse"]),
        ("ms", 2, ["bar less", "worse"]),
        ("ms", 0.5, ["bar less", "better"]),
        ("ms", 1, ["bar less", "better"]),
    ],
)
def test_better_and_worse_can_be_told_apart(unit, ratio, kinds):
    found = drawn(row("it", 1, ratio=ratio, unit=unit))

    shapes = [e.get("class") for e in found.iter() if e.tag in (f"{SVG}rect", f"{SVG}circle")]

    assert [kind for kind in shapes if kind] == kinds


def test_nothing_is_cut_however_long_it_is():
    """Every text ends before whatever comes next in its line, and before the picture does."""
    found = drawn(
        row("what takes many words " * 5, 1.5e12, unit="transactions of a kind", ratio=3),
        row("short", 1, ratio=2, against="much else " * 9, goal="<= 3x", note="and why " * 9),
        notes=["a note of many words " * 30],
    )

    lines = defaultdict(list)
    for element in found.iter(f"{SVG}text"):
        if "tick" not in element.get("class"):
            lines[element.get("y")].append((float(element.get("x")), len(element.text or "")))
    bars = [float(e.get("x")) for e in found.iter(f"{SVG}rect") if e.get("class")]
    dots = [float(e.get("cx")) for e in found.iter(f"{SVG}circle")]

    for texts in lines.values():
        for begin, length in texts:
            end = begin + length * CHARACTER
            after = [x for x in (*bars, *dots, *(x for x, _ in texts)) if x > begin]
            assert end <= float(found.get("width"))
            assert len(texts) == 1 or end <= min(after, default=math.inf)


def test_what_could_not_be_measured_is_said_everywhere():
    """In a short run a reader may have seen nothing yet."""
    report = Report()
    report.extend([row("nothing", math.nan, ratio=math.nan), row("something", 4)])
    console = Console(width=130, record=True, file=io.StringIO())

    report.show(console)
    texts = [e.text for e in ElementTree.fromstring(draw(report)).iter(f"{SVG}text")]
    rows = json.loads(report.to_json())["rows"]

    assert "not measured" in console.export_text()
    assert "not measured" in texts
    assert [(r["value"], r["ratio"], r["note"]) for r in rows] == [
        (None, None, TOO_SHORT),
        (4, None, ""),
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_word_of_a_table_is_cut(width):
    report = Report()
    words = "memory after produce and fetch, much longer than others"
    report.add(
        row(words, 14_486, unit="MiB/s", ratio=12.34, against=f"{words}, Apache Kafka",
            goal=">= 6,000 txn/s", note=f"{words} that are noted")
    )  # fmt: skip
    console = Console(width=width, record=True, file=io.StringIO())

    report.show(console)
    found = console.export_text()

    for each in (*words.split(), "14,486", "MiB/s", "12.34x", "Kafka", "6,000", "txn/s", "noted"):
        assert re.search(rf"(?<!\w){re.escape(each)}(?!\w)", found), each
    assert ("▇" in found) == (width >= WITH_BARS)
    assert all(len(line.rstrip()) <= width for line in found.splitlines())
