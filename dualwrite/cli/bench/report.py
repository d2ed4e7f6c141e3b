"""What a benchmark measured, always beside something else from the same run."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.console import Console
from rich.table import Table

BAR_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure. `ratio` compares it with `against`; `goal` is text, never asserted.

    A value of None is one that the time did not suffice for.
    """

    section: str
    work: str
    value: float | None
    unit: str
    ratio: float | None = None
    against: str = ""
    goal: str = ""
    note: str = ""


@dataclass(slots=True)
class Report:
    """The rows of one run."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        self.rows.append(replace(row, value=_measured(row.value), ratio=_measured(row.ratio)))

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
            console.print(_table(section, self.of(section)))
        for note in self.notes:
            console.print(f"[dim]{note}[/dim]")


def _measured(value: float | None) -> float | None:
    """NaN is what arithmetic makes of nothing."""
    return None if value is None or math.isnan(value) else value


def _table(section: str, rows: Sequence[Row]) -> Table:
    table = Table(title=section, title_justify="left", expand=False)
    table.add_column("work", min_width=34)
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("", no_wrap=True, min_width=BAR_WIDTH)
    table.add_column("ratio", justify="right")
    table.add_column("against")
    table.add_column("goal")
    largest = largest_by_unit(rows)
    for row in rows:
        share = share_of(row, largest)
        bar = "" if share is None else "▇" * max(round(BAR_WIDTH * share), 1)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        work = f"{row.work}\n[dim]{row.note}[/dim]" if row.note else row.work
        table.add_row(work, number(row.value), row.unit, bar, ratio, row.against, row.goal)
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
    ordered = sorted(durations_s)
    tail = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return Latencies(statistics.median(ordered) * 1e3, tail * 1e3, len(ordered) / elapsed_s)
