"""`dualwrite broker`: the bundled broker in the foreground."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

STORAGE_FAILED: Final = 70
REFUSED: Final = 1
USAGE: Final = 2


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
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING, …")] = "INFO",
) -> None:
    """Run the bundled broker until SIGTERM."""
    import logging

    from dualwrite.broker.broker import run_in_foreground
    from dualwrite.broker.security.errors import SecurityConfigError
    from dualwrite.broker.settings import SettingError, Settings
    from dualwrite.broker.storage.errors import StorageError, StorageFailed

    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    pairs = list(set_ or ())
    if listen is not None:
        pairs.append(f"listeners=PLAINTEXT://{listen}")
    try:
        settings = Settings.read(config, pairs)
        run_in_foreground(str(data_dir), settings, _announce)
    except (SecurityConfigError, SettingError) as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(USAGE) from None
    except StorageFailed as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(STORAGE_FAILED) from None
    except (StorageError, OSError) as error:
        typer.echo(f"dualwrite broker: {error}", err=True)
        raise typer.Exit(REFUSED) from None


def _announce(line: str) -> None:
    typer.echo(line)
    sys.stdout.flush()
