"""The `dualwrite` command.

Each module of this package adds one command, which has the module's name, through a function
`attach(app)`. Nothing here knows them by name. Only the module of the command that is asked for is
loaded, all of them for help; what a command needs beyond the client is imported when it runs. A
module with a function `start(arguments)` reads its arguments itself.
"""

import importlib
import logging
import pkgutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["build_app", "main"]

_DRIVERS = ("kazoo", "sqlalchemy")


def build_app(only: str | None = None) -> "typer.Typer":
    """The command with what the modules of this package attach to it; `only` is one of them."""
    import typer

    app = typer.Typer(
        name="dualwrite",
        help="Two-phase commit across a database and Kafka.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    # Without a callback an app with one command would be that command.
    @app.callback()
    def options(
        version: bool = typer.Option(
            False,
            "--version",
            help="Show the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ) -> None:
        pass

    for name in _modules() if only is None else [only]:
        attach = getattr(importlib.import_module(f"{__name__}.{name}"), "attach", None)
        if attach is not None:
            attach(app)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        import typer

        typer.echo(f"dualwrite {version('dualwrite')}")
        raise typer.Exit


def main() -> None:
    """Entry point: exit code 0 is done, 1 is refused or differing, 2 is wrong usage."""
    _leave_out_what_drivers_log()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _modules():
        build_app()()
    start = getattr(importlib.import_module(f"{__name__}.{name}"), "start", None)
    if start is not None:
        sys.exit(start(sys.argv[2:]))
    build_app(only=name)()


def _leave_out_what_drivers_log() -> None:
    """A store that does not answer is told in a line by the command, not in ten by its driver.

    A command that serves sets up a log, and there they are.
    """
    for name in _DRIVERS:
        logging.getLogger(name).addHandler(logging.NullHandler())


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))
