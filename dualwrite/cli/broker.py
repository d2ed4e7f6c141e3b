"""`dualwrite broker`: the bundled broker in the foreground.

Its options are read by argparse: a broker that is started for one test must be there at once, and typer
would take as long to load as half of the broker.
"""

import argparse
import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import typer

    from dualwrite.broker.server import Server
    from dualwrite.broker.settings import Settings

STORAGE_FAILED: Final = 70
REFUSED: Final = 1
USAGE: Final = 2
SUMMARY: Final = "Run the bundled broker until SIGTERM."


def attach(app: "typer.Typer") -> None:
    """Add the command."""
    import typer

    @app.command(
        "broker",
        help=SUMMARY,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def broker(context: typer.Context) -> None:
        raise typer.Exit(start(context.args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dualwrite broker", description=SUMMARY, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        help="where to listen (default: 127.0.0.1:9092); port 0 picks one",
    )
    add(
        "--data-dir",
        default="dualwrite-data",
        metavar="DIR",
        help="where the data is kept (default: ./%(default)s)",
    )
    add("--config", type=Path, metavar="FILE", help="TOML file with settings by Kafka's names")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting by Kafka's name; may be given more than once",
    )
    add(
        "--http-port",
        type=_port,
        metavar="PORT",
        help="console and metrics on loopback; 0 picks a port",
    )
    add(
        "--http-token-file",
        type=Path,
        metavar="FILE",
        help="file (mode 0600) with the console's login token; made if missing",
    )
    add(
        "--http-command-config",
        type=Path,
        metavar="FILE",
        help="client settings of the console, for a broker that asks for a login",
    )
    add("--store", metavar="URL", help="state store that the console asks")
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    add(
        "--log-level",
        default="INFO",
        type=str.upper,
        choices=levels,
        metavar="LEVEL",
        help=f"{', '.join(levels)} (default: %(default)s)",
    )
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def start(arguments: Sequence[str]) -> int:
    """Run until SIGTERM; gives the exit code."""
    options = _parser().parse_args(arguments)

    import logging

    from dualwrite.broker.security.errors import SecurityConfigError
    from dualwrite.broker.settings import SettingError, Settings, directory_of
    from dualwrite.broker.storage.errors import StorageError, StorageFailed
    from dualwrite.errors import ConfigurationError, DualWriteError

    try:
        logging.basicConfig(
            level=options.log_level,
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
        )
        _run(
            directory_of(options.data_dir),
            Settings.read(options.config, _pairs(options)),
            options.http_command_config,
        )
    except (SecurityConfigError, SettingError, ConfigurationError) as error:
        return _say(error, USAGE)
    except StorageFailed as error:
        return _say(error, STORAGE_FAILED)
    except (StorageError, DualWriteError) as error:
        return _say(error, REFUSED)
    except OSError as error:
        # A port in use or a missing right is a refusal; EIO is a disk that fails, at the start too.
        return _say(error, STORAGE_FAILED if error.errno == errno.EIO else REFUSED)
    return 0


def _say(error: Exception, code: int) -> int:
    sys.stderr.write(f"dualwrite broker: {error}\n")
    return code


def _pairs(options: argparse.Namespace) -> list[str]:
    pairs = list(options.set)
    if options.listen is not None:
        pairs.append(f"listeners=PLAINTEXT://{options.listen}")
    for name, value in (
        ("http.port", options.http_port),
        ("http.token.file", options.http_token_file),
        ("store.url", options.store),
    ):
        if value is not None:
            pairs.append(f"{name}={value}")
    return pairs


def _run(data_dir: Path, settings: "Settings", command_config: Path | None) -> None:
    from dualwrite.broker.broker import run_in_foreground

    port = settings["http.port"]
    if port is None:
        run_in_foreground(str(data_dir), settings, _announce)
        return
    from dualwrite.cli.console import TOKEN_NAME, Stoppable, is_installed, start_beside

    beside: list[Stoppable] = []
    is_installed()

    def start_console(server: "Server", metrics_text: Callable[[], bytes]) -> None:
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
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
