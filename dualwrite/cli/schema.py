"""`dualwrite schema print|apply|check`: the tables of an SQL state store."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dualwrite.cli.connecting import (
    REFUSED,
    AsJson,
    CommandConfig,
    bound_elsewhere,
    kafka_config,
    misused,
    reached,
    refused,
)
from dualwrite.errors import ConfigurationError, DualWriteError

if TYPE_CHECKING:
    from dualwrite.adapters.sql import SqlStore

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", envvar="DUALWRITE_STORE", help="SQLAlchemy URL.", metavar="URL", show_envvar=True
    ),
]
TableName = Annotated[str | None, typer.Option("--table", help="Name of the state table.")]
SchemaName = Annotated[str | None, typer.Option("--schema", help="Schema of the tables.")]
# No default and no environment variable: the tables can be checked where no cluster is.
AskedCluster = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        help="Also check that no row is bound to another cluster than this.",
        metavar="HOST:PORT,…",
    ),
]

# Whoever gives the same options to every command may give them here.
UnaskedCluster = Annotated[
    str | None,
    typer.Option("--bootstrap-servers", help="Not asked here.", metavar="HOST:PORT,…"),
]
UnaskedConfig = Annotated[
    Path | None, typer.Option("--command-config", help="Not needed here.", metavar="FILE")
]


def attach(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="Tables of an SQL state store.")
    group.command("print")(print_)
    group.command("apply")(apply)
    group.command("check")(check)
    app.add_typer(group, name="schema")


def print_(
    store: StoreUrl,
    table: TableName = None,
    schema: SchemaName = None,
    bootstrap_servers: UnaskedCluster = None,
    command_config: UnaskedConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print the statements that make the tables; neither database nor cluster is asked."""
    with _opened(store, table, schema) as opened:
        sql = opened.create_sql()
    typer.echo(json.dumps({"sql": sql}) if as_json else sql, nl=as_json)


def apply(
    store: StoreUrl,
    table: TableName = None,
    schema: SchemaName = None,
    bootstrap_servers: AskedCluster = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Make the tables that are missing. Nothing that exists is altered.

    With a cluster it also finds rows that are bound to another one.
    """
    with _opened(store, table, schema) as opened:
        opened.create_tables()
        differences = _differences(opened, bootstrap_servers, command_config)
    _report(differences, as_json)


def check(
    store: StoreUrl,
    table: TableName = None,
    schema: SchemaName = None,
    bootstrap_servers: AskedCluster = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Compare the database with what is needed; exit code 1 if something is missing.

    With a cluster it also finds rows that are bound to another one.
    """
    with _opened(store, table, schema) as opened:
        differences = _differences(opened, bootstrap_servers, command_config)
    _report(differences, as_json)


def _differences(
    store: "SqlStore", bootstrap_servers: str | None, command_config: Path | None
) -> list[str]:
    differences = store.schema_differences()
    if not differences and (bootstrap_servers or command_config):
        cluster_id = _cluster_id(reached(kafka_config(bootstrap_servers, command_config)))
        differences = bound_elsewhere(store.rows(), cluster_id)
    return differences


def _cluster_id(config: Mapping[str, Any]) -> str | None:
    from dualwrite import TransactionAdmin

    with TransactionAdmin(config) as admin:
        return admin.cluster_id()


def _report(differences: list[str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"differences": differences}))
    else:
        typer.echo("\n".join(differences) or "the tables are as they should be")
    if differences:
        raise typer.Exit(REFUSED)


@contextmanager
def _opened(url: str, table: str | None, schema: str | None) -> "Iterator[SqlStore]":
    """The store; its errors end the command in one line, without the URL and its password."""
    from dualwrite.adapters.opening import open_sql_store

    try:
        store = open_sql_store(url, table, schema)
    except ConfigurationError as error:
        misused(error)
    try:
        with closing(store):
            yield store
    except DualWriteError as error:
        refused(error)
