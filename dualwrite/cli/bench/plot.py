"""The report as a picture: a bar for every figure, and where its ratio lies around 1x.

SVG, because every browser shows it and it takes no library to write.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dualwrite.cli.bench.report import LEGEND, Report, Row, largest_by_unit, share_of, written

LINE, GAP, LEFT = 24, 30, 20
CHARACTER = 7.5
"""Width of one, at most, on the average of a text: nobody knows the font that will be found."""
BAR_WIDTH = 240
# Ratios lie on a logarithmic axis: twice as much and half as much are equally far from 1x.
AXIS_WIDTH, AXIS_DOUBLINGS = 240, 4
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-size: 16px; font-weight: 600 }
.dim { fill: #666; font-size: 12px } .more { fill: #3b6fb6 } .less { fill: #9a8cb8 }
.better { fill: #2a7f4f } .worse { fill: white; stroke: #c2571a; stroke-width: 2 }
.tick { text-anchor: middle } .axis { stroke: #bbb } .one { stroke: #555; stroke-dasharray: 3 3 }
"""
COLOURS = (
    "Bars are blue where more is better, violet where less is. A full dot: better than what it is against;"
    " a hollow one: worse. A ratio beyond the axis is at its end."
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Where each column begins: what is left of it is never cut."""

    bars: int
    values: int
    axis: int
    said: int
    end: int

    @staticmethod
    def of(rows: Sequence[Row]) -> "Columns":
        bars = LEFT + _width(row.work for row in rows) + GAP
        values = bars + BAR_WIDTH + 8
        axis = values + _width(map(written, rows)) + GAP
        said = axis + AXIS_WIDTH + GAP
        return Columns(bars, values, axis, said, said + _width(map(_said, rows)) + GAP)

    def ratio(self, ratio: float) -> float:
        """Where a ratio lies; one beyond the axis is put at its end."""
        doublings = min(max(math.log2(ratio), -AXIS_DOUBLINGS), AXIS_DOUBLINGS)
        return self.axis + AXIS_WIDTH * (doublings + AXIS_DOUBLINGS) / (2 * AXIS_DOUBLINGS)


def _width(texts: Iterable[str]) -> int:
    return math.ceil(max(map(len, texts), default=0) * CHARACTER)


def draw(report: Report) -> str:
    """The whole report as one SVG document."""
    shapes: list[str] = []
    columns = Columns.of(report.rows)
    top = LINE
    for section in report.sections():
        top = _section(shapes, section, report.of(section), columns, top) + LINE
    for note in (LEGEND, COLOURS, *report.notes):
        for line in textwrap.wrap(note, int((columns.end - LEFT) / CHARACTER)):
            shapes.append(_text(LEFT, top, line, "dim"))
            top += LINE
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns.end}" height="{top}">\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _section(shapes: list[str], title: str, rows: Sequence[Row], columns: Columns, top: int) -> int:
    """Draw one section from `top` on; gives where it ends."""
    shapes.append(_text(LEFT, top, title, "title"))
    first, last = top + LINE // 2, top + LINE * len(rows) + LINE // 2
    if any(row.ratio for row in rows):
        for doubling in range(-AXIS_DOUBLINGS, AXIS_DOUBLINGS + 1, 2):
            x = columns.ratio(2.0**doubling)
            shapes.append(
                f'<line class="{"axis" if doubling else "one"}" '
                f'x1="{x:.0f}" x2="{x:.0f}" y1="{first}" y2="{last}"/>'
            )
            tick = f"{2**doubling}x" if doubling >= 0 else f"1/{2**-doubling}x"
            shapes.append(_text(x, top + 6, tick, "dim tick"))
    largest = largest_by_unit(rows)
    for row in rows:
        top += LINE
        _row(shapes, row, share_of(row, largest), columns, top)
    return top + LINE // 2


def _row(shapes: list[str], row: Row, share: float | None, columns: Columns, top: int) -> None:
    width = BAR_WIDTH * (share or 0)
    better = "more" if row.more_is_better else "less"
    shapes += [
        _text(LEFT, top, row.work),
        f'<rect class="bar {better}" x="{columns.bars}" y="{top - 11}" '
        f'width="{max(width, 1):.0f}" height="13"/>',
        _text(columns.values, top, written(row)),
        _text(columns.said, top, _said(row), "dim" if row.ratio is None else ""),
    ]
    if row.ratio:
        is_better = row.ratio >= 1 if row.more_is_better else row.ratio <= 1
        shapes.append(
            f'<circle class="{"better" if is_better else "worse"}" '
            f'cx="{columns.ratio(row.ratio):.0f}" cy="{top - 5}" r="5"/>'
        )


def _said(row: Row) -> str:
    """All that a row says besides its value."""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x {row.against}"
    return "; ".join(filter(None, (ratio, row.goal and f"goal {row.goal}", row.note)))


def _text(x: float, y: int, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{escape(text)}</text>'
