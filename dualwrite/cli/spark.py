"""`dualwrite spark`: look at a Spark sink and bring it in order, without Spark.

`recover` and `forget --lost` take the sink over, as a new driver would: a query that is still running
on it fails at its next batch and has to be started again.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualwrite.errors import ConfigurationError, DualWriteError

if TYPE_CHECKING:
    from dualwrite.recipes.spark.decision_log import DecisionLog
    from dualwrite.recipes.spark.engine import Engine

app = typer.Typer(help="Look at a Spark sink and bring it in order.", no_args_is_help=True)

Sink = Annotated[str, typer.Option("--sink", help="The sink's id (dualwrite.sink.id).")]
Servers = Annotated[str, typer.Option("--bootstrap-servers", help="Kafka, as host:port.")]
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="File of key=value Kafka settings.")
]
Decisions = Annotated[
    str | None,
    typer.Option("--decisions", help="URL of the decisions' home; the sink's topic without it."),
]
Mode = Annotated[str, typer.Option("--mode", help="2pc or resume, as the sink was told.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def attach(to: typer.Typer) -> None:
    to.add_typer(app, name="spark")


@app.command()
def status(
    sink: Sink,
    bootstrap_servers: Servers = "127.0.0.1:9092",
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    as_json: AsJson = False,
) -> None:
    """Show the newest driver, the decided batches and what is open; changes nothing."""
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)
    with _refusing(), engine.decisions() as log:
        found = _status(engine, log)
    if as_json:
        _print_json(found)
        return
    _print_status(sink, found)


@app.command()
def recover(
    sink: Sink,
    bootstrap_servers: Servers = "127.0.0.1:9092",
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without decided rows that Kafka has aborted."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Finish what is decided and abort the rest, so that readers can go on."""
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)
    with _refusing(), engine.decisions() as log:
        finished = len(log.read().pending)
        attempt = engine.coordinator(log).recover(accept_loss=accept_loss)
    _print_result({"run": attempt.run, "finished": finished, "aborted": attempt.aborted}, as_json)


@app.command()
def forget(
    sink: Sink,
    bootstrap_servers: Servers = "127.0.0.1:9092",
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    query: Annotated[str | None, typer.Option("--query", help="Only this query's id.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only this job's id.")] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Batches of which Kafka has aborted everything.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forget decided batches: they are written again when Spark runs them again."""
    if sum((query is not None, job is not None, lost)) > 1:
        raise typer.BadParameter("only one of --query, --job and --lost can be given")
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)
    work = f"query:{query}" if query else f"job:{job}" if job else None
    with _refusing(), engine.decisions() as log:
        coordinator = engine.coordinator(log)
        if lost:
            count = coordinator.forget_lost()
        else:
            count = sum(work in (None, known) for known in log.read().decisions)
            coordinator.forget(work)
    _print_result({"forgotten": count}, as_json)


def _engine(
    sink: str, servers: str, command_config: Path | None, decisions: str | None, mode: str
) -> "Engine":
    from dualwrite.recipes.spark.engine import Engine
    from dualwrite.recipes.spark.names import check_sink
    from dualwrite.recipes.spark.options import SinkOptions

    try:
        kafka = {"bootstrap.servers": servers, **_settings(command_config)}
        options = SinkOptions(sink=check_sink(sink), kafka=kafka, decisions=decisions, mode=mode)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    return Engine(options, f"command-{secrets.token_hex(8)}")


def _settings(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise typer.BadParameter(f"--command-config: {error}") from error
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


@contextmanager
def _refusing() -> Iterator[None]:
    """Say in words what went wrong, and end with exit code 1."""
    try:
        yield
    except DualWriteError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error


def _status(engine: "Engine", log: "DecisionLog") -> dict[str, Any]:
    from dualwrite.admin import TransactionAdmin

    ledger = log.read()
    ids = engine.transactions().open_ids()
    with TransactionAdmin(engine.options.kafka) as admin:
        described = admin.describe_transactions(ids) if ids else {}
    head = ledger.head
    return {
        "run": head.run if head else 0,
        "driver": head.token if head else None,
        "is_closed": head.is_closed if head else True,
        "decisions": [
            {
                "work": d.work,
                "batch": d.batch,
                "is_done": d.is_done,
                "transactions": len(d.participants),
                **d.metrics,
            }
            for d in sorted(ledger.decisions.values(), key=lambda d: d.work)
        ],
        "open": [
            {
                "transactional_id": one.transactional_id,
                "pair": str(one.pair),
                "started_ms": one.start_time_ms,
                "outcome": ledger.outcome(one.transactional_id, one.pair),
            }
            for one in described.values()
            if one is not None
        ],
    }


def _print_status(sink: str, found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout)
    state = "closed" if found["is_closed"] else "open"
    console.print(f"sink {sink}: run {found['run']} ({state}), driver {found['driver']}")
    cells: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("query or job", lambda d: d["work"]),
        ("batch", lambda d: d["batch"]),
        ("state", lambda d: "done" if d["is_done"] else "pending"),
        ("rows", lambda d: d.get("rows", "")),
        ("prepare ms", lambda d: d.get("prepare_ms", "")),
        ("decide ms", lambda d: d.get("decide_ms", "")),
        ("complete ms", lambda d: d.get("complete_ms", "")),
        ("orphans", lambda d: d.get("orphans_aborted", "")),
    ]
    decided = Table(*[name for name, _ in cells], title="newest decision of each query and job")
    for decision in found["decisions"]:
        decided.add_row(*[str(cell(decision)) for _, cell in cells])
    console.print(decided)
    if found["open"]:
        opened = Table(
            "transactional id", "pair", "open for", "recovery would", title="open transactions"
        )
        for one in found["open"]:
            age = f"{time.time() - one['started_ms'] / 1000:.0f} s"
            opened.add_row(one["transactional_id"], one["pair"], age, one["outcome"])
        console.print(opened)


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(result)
    else:
        typer.echo(", ".join(f"{name} {value}" for name, value in result.items()))


def _print_json(found: dict[str, Any]) -> None:
    typer.echo(json.dumps(found))
