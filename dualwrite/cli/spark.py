"""`dualwrite spark`: look at a Spark sink and bring it in order, without Spark.

`recover` and `forget --lost` take the sink over, as a new driver would: a query that is still running
on it fails at its next batch and has to be started again.
"""

import json
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dualwrite.cli.connecting import (
    DONE,
    REACH_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    a_name,
    guarded,
    kafka_config,
    reached,
    require_file,
    show,
)
from dualwrite.errors import ConfigurationError, DualWriteError

if TYPE_CHECKING:
    from dualwrite.recipes.spark.decision_log import DecisionLog
    from dualwrite.recipes.spark.engine import Engine

app = typer.Typer(help="Look at a Spark sink and bring it in order.")

Sink = Annotated[str, typer.Option("--sink", help="The sink's id (dualwrite.sink.id).")]
Decisions = Annotated[
    str | None,
    typer.Option("--decisions", help="URL of the decisions' home; the sink's topic without it."),
]
Mode = Annotated[
    Literal["2pc", "resume"], typer.Option("--mode", help="2pc or resume, as the sink was told.")
]


def attach(to: typer.Typer) -> None:
    to.add_typer(app, name="spark", no_args_is_help=True)


@app.command()
def status(
    sink: Sink,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    json_: AsJson = False,
) -> None:
    """Show the newest driver, the decided batches and what is open; changes nothing."""
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)

    def command() -> int:
        reached(engine.options.kafka)
        with engine.decisions() as log:
            found = _status(engine, log)
        if json_:
            typer.echo(json.dumps(found))
        else:
            _print_status(sink, found)
        return DONE

    guarded(command)


@app.command()
def recover(
    sink: Sink,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Go on although decided rows, or the decisions, are lost."
        ),
    ] = False,
    json_: AsJson = False,
) -> None:
    """Finish what is decided and abort the rest, so that readers can go on."""
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)

    def command() -> int:
        reached(engine.options.kafka)
        with engine.decisions() as log:
            coordinator = engine.coordinator(log)
            if coordinator.is_unknown():
                typer.echo(f"sink {sink} was never opened, and nothing of it is open", err=True)
                result = {"run": 0, "finished": 0, "aborted": 0}
            else:
                finished = len(log.read().pending)
                attempt = coordinator.recover(accept_loss=accept_loss)
                result = {"run": attempt.run, "finished": finished, "aborted": attempt.aborted}
        _print_result(result, json_)
        return DONE

    guarded(command)


@app.command()
def forget(
    sink: Sink,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    decisions: Decisions = None,
    mode: Mode = "2pc",
    query: Annotated[
        str | None, typer.Option("--query", help="Only this query's id.", callback=a_name)
    ] = None,
    job: Annotated[
        str | None, typer.Option("--job", help="Only this job's id.", callback=a_name)
    ] = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Batches of which Kafka has aborted everything.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Forget decided batches: they are written again when Spark runs them again."""
    if sum((query is not None, job is not None, lost)) > 1:
        raise typer.BadParameter("only one of --query, --job and --lost can be given")
    engine = _engine(sink, bootstrap_servers, command_config, decisions, mode)
    work = None
    if query is not None or job is not None:
        work = f"job:{job}" if query is None else f"query:{query}"

    def command() -> int:
        reached(engine.options.kafka)
        with engine.decisions() as log:
            coordinator = engine.coordinator(log)
            known = log.read().decisions
            if work is not None and work not in known:
                there_is = ", ".join(sorted(known)) or "none"
                raise DualWriteError(f"no decision of {work} is known; there is {there_is}")
            if lost:
                count = coordinator.forget_lost() if known else 0
            else:
                count = len(known) if work is None else 1
                if known:
                    coordinator.forget(work)
        _print_result({"forgotten": count}, json_)
        return DONE

    guarded(command)


def _engine(
    sink: str, servers: str | None, command_config: Path | None, decisions: str | None, mode: str
) -> "Engine":
    from dualwrite.recipes.spark.engine import Engine
    from dualwrite.recipes.spark.names import check_sink
    from dualwrite.recipes.spark.options import SinkOptions

    if decisions is not None:
        require_file("--decisions", decisions)
    try:
        options = SinkOptions(
            sink=check_sink(sink),
            kafka=kafka_config(servers, command_config),
            decisions=decisions,
            mode=mode,
        )
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    return Engine(options, f"command-{secrets.token_hex(8)}", REACH_MS / 1000)


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
    if found["driver"] is None:
        typer.echo(f"sink {sink}: was never opened where its decisions are looked for")
    else:
        state = "closed" if found["is_closed"] else "open"
        typer.echo(f"sink {sink}: run {found['run']} ({state}), driver {found['driver']}")
    steps = ("rows", "prepare_ms", "decide_ms", "complete_ms", "orphans_aborted")
    decided = [
        {
            "work": d["work"],
            "batch": d["batch"],
            "state": "done" if d["is_done"] else "pending",
            **{step: d.get(step) for step in steps},
        }
        for d in found["decisions"]
    ]
    show(decided, False, title="newest decision of each query and job")
    opened = [
        {
            "transactional_id": one["transactional_id"],
            "pair": one["pair"],
            "open_for": f"{time.time() - one['started_ms'] / 1000:.0f} s",
            "recovery_would": one["outcome"],
        }
        for one in found["open"]
    ]
    show(opened, False, title="open transactions")


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(", ".join(f"{name} {value}" for name, value in result.items()))
