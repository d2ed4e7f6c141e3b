"""The picture of a benchmark says what its rows say."""

import io
import json
import math
from xml.etree import ElementTree

from rich.console import Console

from dualwrite.cli.bench.plot import AXIS, AXIS_WIDTH, BAR_WIDTH, draw
from dualwrite.cli.bench.report import Report, Row

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows, notes=()):
    return ElementTree.fromstring(draw(Report(list(rows), list(notes))))


def row(work, value, ratio=None, unit="ms", **fields):
    return Row(section="s", work=work, value=value, unit=unit, ratio=ratio, **fields)


def test_every_row_is_written_out():
    found = drawn(
        row("a <b> & c", 2, ratio=0.5, against="the floor", goal="<= 4x"), notes=["left out"]
    )

    texts = {element.text for element in found.iter(f"{SVG}text")}

    assert {"s", "a <b> & c", "2 ms", "0.50x the floor (goal <= 4x)", "left out"} <= texts


def test_bars_are_as_long_as_their_values_within_a_unit():
    found = drawn(row("one", 10), row("two", 40), row("other", 5, unit="MiB"))

    bars = [float(e.get("width")) for e in found.iter(f"{SVG}rect") if e.get("class") == "bar"]

    assert bars == [BAR_WIDTH / 4, BAR_WIDTH, BAR_WIDTH]


def test_ratios_lie_around_one():
    ratios = [1 / 1000, 0.5, 1, 2, 1000]
    found = drawn(*(row(str(ratio), 1, ratio=ratio) for ratio in ratios))

    places = [float(e.get("cx")) - AXIS for e in found.iter(f"{SVG}circle")]

    middle, doubling = AXIS_WIDTH / 2, AXIS_WIDTH / 8
    assert places == [0, middle - doubling, middle, middle + doubling, AXIS_WIDTH]


def test_what_could_not_be_measured_is_said_everywhere():
    """In a short run a reader may have seen nothing yet."""
    report = Report()
    report.extend([row("nothing", math.nan, ratio=math.nan), row("something", 4)])
    console = Console(width=130, record=True, file=io.StringIO())

    report.show(console)
    texts = [e.text for e in ElementTree.fromstring(draw(report)).iter(f"{SVG}text")]
    rows = json.loads(report.to_json())["rows"]

    assert "not measured" in console.export_text()
    assert "not measured ms" in texts
    assert [(r["value"], r["ratio"]) for r in rows] == [(None, None), (4, None)]
