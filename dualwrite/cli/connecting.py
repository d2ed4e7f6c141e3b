"""Options that every command for operators takes, and what they lead to."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from dualwrite.errors import ConfigurationError, DualWriteError
from dualwrite.wire.primitives import STRING_BYTES_MAX

if TYPE_CHECKING:
    from dualwrite.store import Store, StoreRow

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        help="Where the cluster is; 127.0.0.1:9092 if nothing says it.",
        metavar="HOST:PORT,…",
        envvar="DUALWRITE_BOOTSTRAP_SERVERS",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", help="File of client settings, one key=value per line."),
]
StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="The state store: an SQLAlchemy URL, rocksdb:PATH or zookeeper://HOSTS/ROOT.",
        metavar="URL",
        envvar="DUALWRITE_STORE",
    ),
]
TableName = Annotated[str, typer.Option("--table", help="Name of the SQL state table.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def a_name(given: str | list[str] | None) -> str | list[str] | None:
    """Refuse what nothing is called: nothing at all (an unset variable), or what no request carries."""
    for name in [given] if isinstance(given, str) else given or ():
        if not name:
            raise typer.BadParameter("the name is empty")
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            raise typer.BadParameter("the name is not UTF-8") from None
        if length > STRING_BYTES_MAX:
            raise typer.BadParameter(f"the name has {length} bytes, {STRING_BYTES_MAX} at most")
    return given


TABLE: Final = "kafka_transaction_state"
LOCAL: Final = "127.0.0.1:9092"
ANSWER_MS: Final = 15_000
"""How long a command waits for an answer, unless the file says it by `max.block.ms`."""
REACH_MS: Final = 4_000
"""How long for the first one: a cluster or a ZooKeeper that is not there is not worth a longer wait."""


class Unreachable(DualWriteError):
    """No broker answers at the addresses that were given."""


def kafka_config(bootstrap: str | None, command_config: Path | None) -> dict[str, Any]:
    """The client's settings from the two options; the command line wins."""
    config: dict[str, Any] = {"bootstrap.servers": LOCAL, "max.block.ms": ANSWER_MS}
    if command_config is not None:
        config |= read_properties(command_config)
    if bootstrap is not None:
        config["bootstrap.servers"] = bootstrap
    from dualwrite.config import parse_config

    try:
        parse_config(config, transactional=False)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None
    return config


def reached(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same settings, once a broker has answered at them; raises `Unreachable` soon if none does."""
    from dualwrite import TransactionAdmin
    from dualwrite.failures import KafkaTimeout

    limit_ms = min(REACH_MS, int(config["max.block.ms"]))
    try:
        with TransactionAdmin({**config, "max.block.ms": limit_ms}) as admin:
            admin.cluster_id()
    except KafkaTimeout as error:
        told = f"no broker answers at {config['bootstrap.servers']} within {limit_ms / 1000:g} s"
        why = str(error.last_error or "silence")
        if isinstance(error.last_error, ConnectionResetError | BrokenPipeError):
            why += "; it may ask for a login or TLS (--command-config)"
        raise Unreachable(f"{told}: {why}") from error
    return config


def reached_config(bootstrap: str | None, command_config: Path | None) -> Mapping[str, Any]:
    """The client's settings, once a broker has answered at them; else the end of the command."""
    config = kafka_config(bootstrap, command_config)
    try:
        return reached(config)
    except DualWriteError as error:
        refused(error)


def for_librdkafka(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings without the one key that librdkafka does not know."""
    return {key: value for key, value in config.items() if key != "max.block.ms"}


def read_properties(path: Path) -> dict[str, str]:
    r"""Read `key=value` lines; `#` begins a comment. In the value of a `.pem` key `\n` ends a line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--command-config: {path}: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise typer.BadParameter(f"{path}:{number}: not a key=value line")
        name, text = key.strip(), value.strip()
        found[name] = text.replace("\\n", "\n") if name.endswith(".pem") else text
    return found


def _file_of(url: str) -> Path | None:
    """Where a store that lives in a file is; None for one that a server keeps."""
    scheme, _, rest = url.partition(":")
    if scheme == "rocksdb":
        return Path(rest)
    if scheme.partition("+")[0] == "sqlite" and rest.startswith("///"):
        path = rest.removeprefix("///").partition("?")[0]
        return None if path in ("", ":memory:") or path.startswith("file:") else Path(path)
    return None


def require_file(option: str, url: str) -> None:
    """Refuse a store in a file that is not there: opening makes one, in which nothing is in doubt."""
    file = _file_of(url)
    if file is not None and not file.exists():
        raise typer.BadParameter(f"{option}: there is nothing at {file}")


@contextmanager
def opened_store(url: str | None, table: str) -> "Iterator[Store]":
    """Open the store that a URL names."""
    if not url:
        raise typer.BadParameter("give --store: without it nobody can know what is decided")
    from dualwrite.adapters.opening import open_store

    require_file("--store", url)
    try:
        store = open_store(url, table, start_seconds=REACH_MS / 1000)
    except ConfigurationError as error:
        raise typer.BadParameter(f"--store: {error}") from None
    try:
        yield store
    finally:
        store.close()


def bound_elsewhere(rows: "Iterable[StoreRow]", cluster_id: str | None) -> list[str]:
    """Rows that were written beside another cluster: what they say of transactions is not of this one."""
    return [
        f"{row.transactional_id} is bound to another cluster, {row.cluster_id}"
        for row in rows
        if row.cluster_id not in ("", cluster_id)
    ]


def guarded(command: Callable[[], int]) -> None:
    """Run a command and leave with its exit code; an error of ours is a refusal, not a traceback."""
    from confluent_kafka import KafkaException

    try:
        code = command()
    except DualWriteError as error:
        refused(error)
    except KafkaException as error:
        refused(error.args[0].str())
    raise typer.Exit(code)


def refused(reason: object) -> NoReturn:
    """End the command: what was asked for can't be done."""
    typer.echo(f"dualwrite: {reason}", err=True)
    raise typer.Exit(REFUSED)


def misused(reason: object) -> NoReturn:
    """End the command: it was called in a wrong way."""
    typer.echo(f"dualwrite: {reason}", err=True)
    raise typer.Exit(USAGE)


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


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, title: str = "") -> None:
    """Print rows as a table for people, or as JSON for programs."""
    if as_json:
        typer.echo(json.dumps(list(rows), default=str))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        typer.echo("none")
        return
    table = Table(title=title or None, box=box.SIMPLE)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)
