"""`dualwrite broker`: the bundled broker in the foreground."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from dualwrite.broker.server import Server
    from dualwrite.broker.settings import Settings

STORAGE_FAILED: Final = 70
REFUSED: Final = 1
USAGE: Final = 2


HttpPort = Annotated[
    int | None,
    typer.Option(help="Console and metrics on loopback; 0 picks a port.", min=0, max=65535),
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File (mode 0600) with the console's login token.")
]
HttpConfig = Annotated[
    Path | None,
    typer.Option(help="Client settings of the console, for a broker that asks for a login."),
]
StoreUrl = Annotated[
    str | None, typer.Option(help="State store that the console asks.", metavar="URL")
]


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command("broker")(broker)


def broker(
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT; port 0 picks a free one.", metavar="HOST:PORT")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Where the data is kept.")] = Path(
        "dualwrite-data"
    ),
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings by Kafka's names.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting.", metavar="KEY=VALUE")
    ] = None,
    http_port: HttpPort = None,
    http_token_file: TokenFile = None,
    http_command_config: HttpConfig = None,
    store: StoreUrl = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING, …")] = "INFO",
) -> None:
    """Run the bundled broker until SIGTERM."""
    import logging

    from dualwrite.broker.security.errors import SecurityConfigError
    from dualwrite.broker.settings import SettingError, Settings
    from dualwrite.broker.storage.errors import StorageError, StorageFailed
    from dualwrite.errors import ConfigurationError

    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    pairs = list(set_ or ())
    if listen is not None:
        pairs.append(f"listeners=PLAINTEXT://{listen}")
    for name, value in (
        ("http.port", http_port),
        ("http.token.file", http_token_file),
        ("store.url", store),
    ):
        if value is not None:
            pairs.append(f"{name}={value}")
    try:
        _run(data_dir, Settings.read(config, pairs), http_command_config)
    except (SecurityConfigError, SettingError, ConfigurationError) as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(USAGE) from None
    except StorageFailed as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(STORAGE_FAILED) from None
    except (StorageError, OSError) as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(REFUSED) from None


def _run(data_dir: Path, settings: "Settings", command_config: Path | None) -> None:
    from dualwrite.broker.broker import run_in_foreground
    from dualwrite.cli.console import TOKEN_NAME, Stoppable, is_installed, start_beside

    beside: list[Stoppable] = []
    if settings["http.port"] is not None:
        is_installed()

    def start_console(server: "Server", metrics_text: Callable[[], bytes]) -> None:
        port = settings["http.port"]
        if port is None:
            return
        token_file = settings["http.token.file"] or data_dir / TOKEN_NAME
        beside.append(
            start_beside(
                server.listeners,
                metrics_text,
                port=port,
                token_file=Path(token_file),
                store_url=settings["store.url"],
                command_config=command_config,
            )
        )

    try:
        run_in_foreground(str(data_dir), settings, _announce, start_console)
    finally:
        for each in beside:
            each.stop()


def _announce(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
