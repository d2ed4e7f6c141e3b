"""What a benchmark measured, always beside something else from the same run."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.console import Console
from rich.table import Table

BAR_WIDTH = 12
WITH_BARS = 120
"""Columns of a terminal below which bars would leave too few to the words."""
LEGEND = (
    "A ratio is the row's own value over that of what it is against. Of what is per second more is better,"
    " of all else less. Bars of one unit are drawn to one scale in each section."
)
TOO_SHORT = "the time did not suffice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `ratio` is `value` over that of `against`; `goal` is text, never asserted.

    A value or ratio of None could not be measured, and `note` says why.
    """

    section: str
    work: str
    value: float | None
    unit: str
    ratio: float | None = None
    against: str = ""
    goal: str = ""
    note: str = ""

    @property
    def more_is_better(self) -> bool:
        return self.unit.endswith("/s")


@dataclass(slots=True)
class Report:
    """The rows of one run."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        value, ratio = _measured(row.value), _measured(row.ratio)
        missing = value is None or (ratio is None and bool(row.against))
        note = row.note or (TOO_SHORT if missing else "")
        self.rows.append(replace(row, value=value, ratio=ratio, note=note))

    def extend(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.add(row)

    def sections(self) -> list[str]:
        return list(dict.fromkeys(row.section for row in self.rows))

    def of(self, section: str) -> list[Row]:
        return [row for row in self.rows if row.section == section]

    def to_json(self) -> str:
        return json.dumps({"rows": [asdict(r) for r in self.rows], "notes": self.notes}, indent=2)

    def show(self, console: Console) -> None:
        """A table per section, with a bar per unit so that the eye finds the differences."""
        for section in self.sections():
            console.print(_table(section, self.of(section), with_bars=console.width >= WITH_BARS))
        for note in (LEGEND, *self.notes):
            console.print(f"[dim]{note}[/dim]")


def _measured(value: float | None) -> float | None:
    """NaN is what arithmetic makes of nothing."""
    return None if value is None or math.isnan(value) else value


def _table(section: str, rows: Sequence[Row], *, with_bars: bool) -> Table:
    table = Table(title=section, title_justify="left", expand=False)
    table.add_column("work")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    if with_bars:
        table.add_column("", no_wrap=True, min_width=BAR_WIDTH)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("against")
    table.add_column("goal", no_wrap=True)
    largest = largest_by_unit(rows)
    for row in rows:
        share = share_of(row, largest)
        bar = "" if share is None else "▇" * max(round(BAR_WIDTH * share), 1)
        figures = [number(row.value), row.unit, *([bar] if with_bars else [])]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        work = f"{row.work}\n[dim]{row.note}[/dim]" if row.note else row.work
        table.add_row(work, *figures, ratio, row.against, row.goal)
    return table


def largest_by_unit(rows: Sequence[Row]) -> dict[str, float]:
    """What a bar of full length stands for."""
    largest: dict[str, float] = {}
    for row in rows:
        largest[row.unit] = max(largest.get(row.unit, 0.0), row.value or 0.0)
    return largest


def share_of(row: Row, largest: Mapping[str, float]) -> float | None:
    """How long a row's bar is, of 1; None if there is nothing to draw."""
    if row.value is None:
        return None
    return row.value / largest[row.unit] if largest[row.unit] else 0.0


def written(row: Row) -> str:
    return number(row.value) if row.value is None else f"{number(row.value)} {row.unit}"


def number(value: float | None) -> str:
    if value is None:
        return "not measured"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Durations of many equal works, in milliseconds."""

    p50: float
    p99: float
    per_second: float


def summarize(durations_s: Sequence[float], elapsed_s: float) -> Latencies:
    """Median and tail of `durations_s`, and how many were done per second over `elapsed_s`."""
    if not durations_s:
        return Latencies(math.nan, math.nan, math.nan)
    ordered = sorted(durations_s)
    tail = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return Latencies(statistics.median(ordered) * 1e3, tail * 1e3, len(ordered) / elapsed_s)
