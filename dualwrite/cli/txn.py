"""`dualwrite txn`: look at transactions, explain them, and end them safely."""

import enum
import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualwrite.cli.connecting import (
    DONE,
    REFUSED,
    TABLE,
    AsJson,
    Bootstrap,
    CommandConfig,
    StoreUrl,
    TableName,
    a_name,
    for_librdkafka,
    guarded,
    kafka_config,
    opened_store,
    reached,
    show,
)

if TYPE_CHECKING:
    from dualwrite.admin import TransactionAdmin, TransactionDescription
    from dualwrite.explanation import Explanation

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")

Id = Annotated[str, typer.Argument(metavar="ID", help="The transactional id.", callback=a_name)]


class State(enum.StrEnum):
    """States of a transaction, as Kafka's coordinators name them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    DEAD = "Dead"


txn = typer.Typer(help="Transactions of the cluster, and what the store says of them.")


def attach(app: typer.Typer) -> None:
    app.add_typer(txn, name="txn", no_args_is_help=True)


@txn.command("list")
def list_(
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    state: Annotated[
        list[State] | None,
        typer.Option(
            help="Only this state, such as Ongoing; may be given more than once.",
            case_sensitive=False,
            metavar="STATE",
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only ids that this regular expression matches in full.")
    ] = None,
    min_duration_ms: Annotated[int | None, typer.Option(help="Only what is open longer.")] = None,
    json_: AsJson = False,
) -> None:
    """List transactional ids; for what is open, since when and on which partitions."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise typer.BadParameter(f"--pattern: {error}") from None

    def command() -> int:
        with _admin(reached(kafka_config(bootstrap_servers, command_config))) as admin:
            found = admin.list_transactions(state, min_duration_ms, pattern)
            opened = [entry.transactional_id for entry in found if entry.state in OPEN]
            described = admin.describe_transactions(opened) if opened else {}
        rows = [
            {
                "transactional_id": entry.transactional_id,
                "producer_id": entry.producer_id,
                "state": entry.state,
                **_open_since(described.get(entry.transactional_id)),
            }
            for entry in sorted(found, key=lambda entry: entry.transactional_id)
        ]
        told = rows if json_ else [_for_people(row) for row in rows]
        show(told, json_, title="transactional ids")
        return DONE

    guarded(command)


@txn.command()
def describe(
    transactional_id: Id,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    json_: AsJson = False,
) -> None:
    """Show what the coordinator knows of an id."""

    def command() -> int:
        with _admin(reached(kafka_config(bootstrap_servers, command_config))) as admin:
            found = admin.describe_transactions([transactional_id])[transactional_id]
        if found is None:
            typer.echo(f"the coordinator does not know {transactional_id}", err=True)
            return REFUSED
        facts = _facts(found)
        if json_:
            typer.echo(json.dumps(facts))
        else:
            show(_described(facts), False)
        return DONE

    guarded(command)


@txn.command()
def explain(
    transactional_id: Id,
    store: StoreUrl = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    table: TableName = TABLE,
    json_: AsJson = False,
) -> None:
    """Say what would be done about an id, and why. Changes nothing."""

    def command() -> int:
        from dualwrite.operations import look

        config = kafka_config(bootstrap_servers, command_config)
        with opened_store(store, table) as opened, _admin(reached(config)) as admin:
            explanation, described = look(opened, admin, transactional_id)
        _print_explanation(transactional_id, explanation, _partitions(config, described), json_)
        return REFUSED if explanation.advice == "look" else DONE

    guarded(command)


@txn.command()
def resolve(
    transactional_id: Id,
    store: StoreUrl = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    table: TableName = TABLE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say it.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Even if its owner is alive.")] = False,
    json_: AsJson = False,
) -> None:
    """Claim the slot, read what the store says, and commit or abort accordingly."""

    def command() -> int:
        from dualwrite.operations import Refusal, look
        from dualwrite.operations import resolve as resolve_id

        config = kafka_config(bootstrap_servers, command_config)
        with opened_store(store, table) as opened:
            with _admin(reached(config)) as admin:
                explanation, _ = look(opened, admin, transactional_id)
            if dry_run:
                _print_explanation(transactional_id, explanation, [], json_)
                return DONE
            try:
                done = resolve_id(config, opened, explanation, transactional_id, now=now)
            except Refusal:
                _print_explanation(transactional_id, explanation, [], json_)
                return REFUSED
        _print_done(transactional_id, done, json_)
        return DONE

    guarded(command)


@txn.command("force-terminate")
def force_terminate(
    transactional_id: Id,
    store: StoreUrl = None,
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    table: TableName = TABLE,
    heuristic: Annotated[
        bool, typer.Option("--heuristic", help="Abort although the database says commit.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why; written down before it is done.")] = "",
    json_: AsJson = False,
) -> None:
    """Abort what an id has open; refused if the database says commit, unless --heuristic."""
    if heuristic and not reason.strip():
        raise typer.BadParameter("--heuristic needs --reason TEXT")

    def command() -> int:
        from dualwrite.operations import Refusal, terminate

        config = kafka_config(bootstrap_servers, command_config)
        with opened_store(store, table) as opened, _admin(reached(config)) as admin:
            try:
                why = reason if heuristic else ""
                terminate(config, opened, admin, transactional_id, reason=why)
            except Refusal as refusal:
                typer.echo(f"refused: {refusal}", err=True)
                return REFUSED
        _print_done(transactional_id, "abort", json_)
        return DONE

    guarded(command)


def _admin(config: Mapping[str, Any]) -> "TransactionAdmin":
    from dualwrite import TransactionAdmin

    return TransactionAdmin(config)


def _facts(found: "TransactionDescription") -> dict[str, Any]:
    last = found.last_finished
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "txn": str(found.pair),
        "two_phase": found.is_two_phase,
        "timeout_ms": found.timeout_ms,
        "coordinator": found.coordinator,
        **_open_since(found),
        "last_finished": str(last) if last else None,
    }


def _open_since(found: "TransactionDescription | None") -> dict[str, Any]:
    """When a transaction began, and where it holds readers back."""
    return {
        "start_time_ms": found.start_time_ms if found else None,
        "partitions": [f"{topic}-{number}" for topic, number in found.partitions] if found else [],
    }


def _for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of an open transaction, with its age and its partitions as text."""
    from dualwrite.spans import duration

    start_ms = row["start_time_ms"] if row["state"] in OPEN else None
    rest = {name: value for name, value in row.items() if name != "start_time_ms"}
    return rest | {
        "open_for": duration(time.time() * 1000 - start_ms) if start_ms else "",
        "partitions": ", ".join(row["partitions"]),
    }


def _described(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    from dualwrite.descriptions import TWO_PHASE_TIMEOUT_MS
    from dualwrite.spans import duration, moment

    limit_ms = facts["timeout_ms"]
    told = _for_people(facts) | {
        "two_phase": "yes" if facts["two_phase"] else "no",
        "timeout_ms": "none" if limit_ms == TWO_PHASE_TIMEOUT_MS else duration(limit_ms),
        "began": moment(facts["start_time_ms"]),
    }
    return [{"field": name.removesuffix("_ms"), "value": value} for name, value in told.items()]


def _partitions(
    config: Mapping[str, Any], described: "TransactionDescription | None"
) -> list[dict[str, Any]]:
    """How far readers get on each partition of the open transaction."""
    if described is None or not described.partitions:
        return []
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient(for_librdkafka(config) | {"log_level": 0})
    # librdkafka puts off its question for leaders by three seconds while it bootstraps.
    admin.list_topics(timeout=20)
    ends = {}
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = {TopicPartition(*name): OffsetSpec.latest() for name in described.partitions}
        found = admin.list_offsets(asked, isolation_level=level, request_timeout=20)
        ends[level] = {(tp.topic, tp.partition): f.result().offset for tp, f in found.items()}
    return [
        {
            "partition": f"{name[0]}-{name[1]}",
            "last_stable_offset": ends[IsolationLevel.READ_COMMITTED][name],
            "high_watermark": ends[IsolationLevel.READ_UNCOMMITTED][name],
        }
        for name in described.partitions
    ]


def _print_explanation(
    transactional_id: str,
    explanation: "Explanation",
    partitions: list[dict[str, Any]],
    as_json: bool,
) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "transactional_id": transactional_id,
                    "advice": explanation.advice,
                    "reasons": explanation.reasons,
                    "partitions": partitions,
                }
            )
        )
        return
    typer.echo(f"{transactional_id}: {explanation.advice}")
    for reason in explanation.reasons:
        typer.echo(f"  {reason}")
    if partitions:
        show(partitions, False)
    if explanation.advice in ("commit", "abort"):
        typer.echo(f"dualwrite txn resolve {transactional_id} does it")


def _print_done(transactional_id: str, verdict: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"transactional_id": transactional_id, "done": verdict}))
    else:
        typer.echo(f"{transactional_id}: {verdict}")
