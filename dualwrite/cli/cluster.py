"""Options of every command that talks to a cluster, and how their results are shown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from dualwrite.cli.connecting import (
    ANSWER_MS,
    REFUSED,
    USAGE,
    AsJson,
    CommandConfig,
    for_librdkafka,
    read_properties,
)

__all__ = [
    "AsJson",
    "BootstrapServers",
    "CommandConfig",
    "ask",
    "check",
    "client_config",
    "for_librdkafka",
    "misused",
    "refused",
    "show",
]

BootstrapServers = Annotated[
    str | None,
    typer.Option(
        help="Where the cluster is; 127.0.0.1:9092 if nothing says it.",
        metavar="HOST:PORT,…",
        envvar="DUALWRITE_BOOTSTRAP_SERVERS",
    ),
]
LOCAL: Final = "127.0.0.1:9092"


def client_config(bootstrap_servers: str | None, command_config: Path | None) -> dict[str, str]:
    """The configuration of a client: the file's lines, and where the cluster is if told."""
    config = {} if command_config is None else read_properties(command_config)
    if bootstrap_servers is not None:
        config["bootstrap.servers"] = bootstrap_servers
    return {"bootstrap.servers": LOCAL} | config


def ask(config: Mapping[str, Any], *requests: Any) -> list[Any]:
    """Send requests over one connection and return the answers; a failure ends the command."""
    from dualwrite.connection import Connection
    from dualwrite.errors import DualWriteError

    try:
        with Connection({"max.block.ms": ANSWER_MS} | dict(config)) as connection:
            return [connection.send(request) for request in requests]
    except DualWriteError as error:
        refused(error)


def check(code: int, message: str | None = None) -> None:
    """End the command if the broker has answered with an error."""
    from dualwrite.wire.error_codes import ErrorCode

    if code:
        refused(f"{ErrorCode.name_of(code)}: {message}" if message else ErrorCode.name_of(code))


def show(rows: Sequence[Mapping[str, Any]], columns: Iterable[str], as_json: bool) -> None:
    """Print rows as a table for people or as JSON for programs."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
    Console().print(table)


def refused(reason: object) -> NoReturn:
    """End the command: what was asked for can't be done."""
    typer.echo(f"dualwrite: {reason}", err=True)
    raise typer.Exit(REFUSED)


def misused(reason: object) -> NoReturn:
    """End the command: it was called in a wrong way."""
    typer.echo(f"dualwrite: {reason}", err=True)
    raise typer.Exit(USAGE)
