"""`dualwrite console`: the console as a process of its own; and the one beside a broker."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from dualwrite.cli.connecting import (
    REFUSED,
    TABLE,
    USAGE,
    Bootstrap,
    CommandConfig,
    StoreUrl,
    TableName,
    kafka_config,
    read_properties,
)

if TYPE_CHECKING:
    from dualwrite.broker.listeners import Listener
    from dualwrite.recipes.console import ConsoleServer

log = logging.getLogger("dualwrite.console")

TOKEN_NAME: Final = "console.token"
NOT_INSTALLED: Final = "the console needs the extra: pip install 'dualwrite[console]'"
AUDIT_NAME: Final = "console-audit.jsonl"


class Stoppable(Protocol):
    def stop(self) -> None: ...


def attach(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    bootstrap_servers: Bootstrap = None,
    command_config: CommandConfig = None,
    store: StoreUrl = None,
    table: TableName = TABLE,
    http_port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = 0,
    token_file: Annotated[
        Path | None, typer.Option(help="File (mode 0600) with the login token; made if missing.")
    ] = None,
) -> None:
    """Serve the console on loopback, for any Kafka cluster."""
    from dualwrite.errors import ConfigurationError, DualWriteError

    logging.basicConfig(level="INFO", stream=sys.stderr)
    if not is_installed():
        typer.echo(f"dualwrite console: {NOT_INSTALLED}", err=True)
        raise typer.Exit(USAGE)
    try:
        server = _server(
            kafka_config(bootstrap_servers, command_config),
            http_port,
            token_file or _home() / TOKEN_NAME,
            store_url=store,
            table=table,
        )
    except (ConfigurationError, OSError) as error:
        typer.echo(f"dualwrite console: {error}", err=True)
        raise typer.Exit(USAGE) from None
    except DualWriteError as error:
        typer.echo(f"dualwrite console: {error}", err=True)
        raise typer.Exit(REFUSED) from None
    server.run()


def is_installed() -> bool:
    """Whether the extra is; importing it takes its time, so ask before the broker serves."""
    try:
        import dualwrite.recipes.console  # noqa: F401
    except ImportError:
        return False
    return True


def start_beside(
    listeners: "list[Listener]",
    metrics_text: Callable[[], bytes],
    *,
    port: int,
    token_file: Path,
    store_url: str | None,
    command_config: Path | None,
) -> Stoppable:
    """The console of a broker in this process; only its metrics if the extra is not installed."""
    from dualwrite.errors import ConfigurationError

    if not is_installed():
        from dualwrite.broker.metrics_page import MetricsPage

        page = MetricsPage(port, metrics_text)
        _say(f"metrics on http://127.0.0.1:{page.port}/metrics")
        log.warning(NOT_INSTALLED)
        return page
    config: dict[str, Any] = {"bootstrap.servers": _own_address(listeners)}
    if command_config is not None:
        try:
            config = config | read_properties(command_config)
        except typer.BadParameter as error:
            raise ConfigurationError(str(error)) from None
    elif not any(_is_plain(listener) for listener in listeners):
        log.warning("the console can't log in to this broker: give --http-command-config FILE")
    return _server(config, port, token_file, store_url=store_url, metrics_text=metrics_text).start()


def _server(
    config: dict[str, Any],
    port: int,
    token_file: Path,
    *,
    store_url: str | None = None,
    table: str | None = None,
    metrics_text: Callable[[], bytes] | None = None,
) -> "ConsoleServer":
    from dualwrite.recipes.console import Access, ConsoleServer, create_app, read_or_create_token
    from dualwrite.recipes.console.audit import AuditLog
    from dualwrite.recipes.console.server import open_port

    token = read_or_create_token(token_file)
    listening = open_port(port)
    try:
        app = create_app(
            config,
            Access.on_loopback(token, listening.getsockname()[1]),
            AuditLog(token_file.with_name(AUDIT_NAME)),
            store_url=store_url,
            table=table,
            metrics_text=metrics_text,
        )
    except BaseException:
        listening.close()
        raise
    server = ConsoleServer(app, listening)
    _say(f"console on http://127.0.0.1:{server.port}")
    _say(f"login token in {token_file}")
    return server


def _is_plain(listener: "Listener") -> bool:
    return listener.protocol == "PLAINTEXT"


def _own_address(listeners: "list[Listener]") -> str:
    """The listener to connect to: one that asks for nothing, if there is one."""
    listener = next(filter(_is_plain, listeners), listeners[0])
    host = listener.host
    if host in ("", "0.0.0.0"):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"[{host}]:{listener.port}" if ":" in host else f"{host}:{listener.port}"


def _home() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dualwrite"


def _say(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
