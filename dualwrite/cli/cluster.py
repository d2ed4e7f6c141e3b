"""Options of every command that talks to a cluster, and how their results are shown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from dualwrite.cli.connecting import (
    REFUSED,
    USAGE,
    AsJson,
    Bootstrap,
    CommandConfig,
    kafka_config,
    reached,
)
from dualwrite.errors import DualWriteError

__all__ = [
    "AsJson",
    "Bootstrap",
    "CommandConfig",
    "ask",
    "check",
    "misused",
    "reached_config",
    "refused",
    "show",
]


def reached_config(bootstrap: str | None, command_config: Path | None) -> Mapping[str, Any]:
    """The client's settings, once a broker has answered at them; else the end of the command."""
    config = kafka_config(bootstrap, command_config)
    try:
        return reached(config)
    except DualWriteError as error:
        refused(error)


def ask(config: Mapping[str, Any], *requests: Any) -> list[Any]:
    """Send requests over one connection and return the answers; a failure ends the command."""
    from dualwrite.connection import Connection

    try:
        with Connection(config) as connection:
            return [connection.send(request) for request in requests]
    except (DualWriteError, OSError) as error:
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
