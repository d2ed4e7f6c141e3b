"""The report as a picture: a bar for every figure, and where its ratio lies around 1x.

SVG, because every browser shows it and it takes no library to write.
"""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from dualwrite.cli.bench.report import Report, Row, largest_by_unit, number, share_of

WIDTH = 1400
LINE = 24
LABELS, BARS, BAR_WIDTH = 20, 330, 240
# Ratios lie on a logarithmic axis: twice as much and half as much are equally far from 1x.
AXIS, AXIS_WIDTH, AXIS_DOUBLINGS = 720, 240, 4
AGAINST = AXIS + AXIS_WIDTH + 40
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222 } .title { font-size: 16px; font-weight: 600 }
.dim { fill: #666; font-size: 12px } .bar { fill: #3b6fb6 } .dot { fill: #c2571a }
.tick { text-anchor: middle } .axis { stroke: #bbb } .one { stroke: #555; stroke-dasharray: 3 3 }
"""


def draw(report: Report) -> str:
    """The whole report as one SVG document."""
    shapes: list[str] = []
    top = LINE
    for section in report.sections():
        top = _section(shapes, section, report.of(section), top) + LINE
    for note in report.notes:
        shapes.append(_text(LABELS, top, note, "dim"))
        top += LINE
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}">\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _section(shapes: list[str], title: str, rows: Sequence[Row], top: int) -> int:
    """Draw one section from `top` on; gives where it ends."""
    shapes.append(_text(LABELS, top, title, "title"))
    first, last = top + LINE // 2, top + LINE * len(rows) + LINE // 2
    if any(row.ratio for row in rows):
        for doubling in range(-AXIS_DOUBLINGS, AXIS_DOUBLINGS + 1, 2):
            x = _ratio_x(2.0**doubling)
            shapes.append(
                f'<line class="{"axis" if doubling else "one"}" '
                f'x1="{x:.0f}" x2="{x:.0f}" y1="{first}" y2="{last}"/>'
            )
            tick = f"{2**doubling}x" if doubling >= 0 else f"1/{2**-doubling}x"
            shapes.append(_text(x, top + 6, tick, "dim tick"))
    largest = largest_by_unit(rows)
    for row in rows:
        top += LINE
        _row(shapes, row, share_of(row, largest), top)
    return top + LINE // 2


def _row(shapes: list[str], row: Row, share: float | None, top: int) -> None:
    width = BAR_WIDTH * (share or 0)
    shapes += [
        _text(LABELS, top, row.work),
        f'<rect class="bar" x="{BARS}" y="{top - 11}" width="{max(width, 1):.0f}" height="13"/>',
        _text(BARS + BAR_WIDTH + 8, top, f"{number(row.value)} {row.unit}"),
    ]
    if row.ratio:
        x = _ratio_x(row.ratio)
        said = f"{row.ratio:.2f}x {row.against}" + (f" (goal {row.goal})" if row.goal else "")
        shapes.append(f'<circle class="dot" cx="{x:.0f}" cy="{top - 5}" r="5"/>')
        shapes.append(_text(AGAINST, top, said))
    elif row.goal:
        shapes.append(_text(AGAINST, top, f"goal {row.goal}", "dim"))


def _ratio_x(ratio: float) -> float:
    """Where a ratio lies; one beyond the axis is put at its end."""
    doublings = min(max(math.log2(ratio), -AXIS_DOUBLINGS), AXIS_DOUBLINGS)
    return AXIS + AXIS_WIDTH * (doublings + AXIS_DOUBLINGS) / (2 * AXIS_DOUBLINGS)


def _text(x: float, y: int, text: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{escape(text)}</text>'
