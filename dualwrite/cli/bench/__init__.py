"""`dualwrite bench`: ours beside what one would use instead, in one run on one machine.

Nothing is asserted: the goals are printed beside the figures, and every ratio names what it is taken
against. Each section is a module with a function `run(report, seconds)`.
"""

import importlib
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dualwrite.cli.bench.plot import draw
from dualwrite.cli.bench.report import Report
from dualwrite.cli.connecting import CommandConfig, reached_config

SECTIONS = (
    "floor",
    "brokers",
    "transactions",
    "noise",
    "unread",
    "dual_writes",
    "spark",
    "scaling",
)


# No default and no environment variable: nobody's cluster is put under load unasked.
AskedCluster = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        help="Also measure transactions on this cluster.",
        metavar="HOST:PORT,…",
    ),
]


def attach(app: typer.Typer) -> None:
    app.command(name="bench")(bench)


def bench(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Which of: {', '.join(SECTIONS)}.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for each measurement.", min=0.2)] = 4.0,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it, as an SVG file.", dir_okay=False)
    ] = None,
    bootstrap_servers: AskedCluster = None,
    command_config: CommandConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure broker, transactions, dual writes and Spark, as ratios to a floor or a peer.

    It starts what it measures. With a cluster it also measures transactions there.
    """
    chosen = [name.replace("-", "_") for name in sections or SECTIONS]
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        raise typer.BadParameter(f"no such section: {', '.join(unknown)}")
    report = Report()
    report.notes.append(
        f"dualwrite {version('dualwrite')}, {seconds:g} s for each measurement, {os.cpu_count()} processors"
    )
    progress = Console(stderr=True)
    cluster = None
    if bootstrap_servers or command_config:
        cluster = reached_config(bootstrap_servers, command_config)
    for name in chosen:
        progress.print(f"[dim]measuring {name} …[/dim]")
        importlib.import_module(f"{__name__}.{name}").run(report, seconds)
    if cluster is not None:
        from dualwrite.cli.bench.transactions import on_cluster

        progress.print("[dim]measuring the cluster …[/dim]")
        on_cluster(report, cluster, seconds)
    if plot is not None:
        plot.write_text(draw(report), encoding="utf-8")
    if as_json:
        typer.echo(report.to_json())
    else:
        console = Console()
        # A pipe has no width of its own; cut words help nobody.
        report.show(console if console.is_terminal else Console(width=160))
