"""The `dualwrite` command.

Each module of this package adds its commands through a function `attach(app)`; nothing here knows
them by name, and what a command needs beyond the client is imported when it runs.
"""

import importlib
import pkgutil

import typer

__all__ = ["build_app", "main"]


def build_app() -> typer.Typer:
    """The command with everything that the modules of this package attach to it."""
    app = typer.Typer(
        name="dualwrite",
        help="Two-phase commit across a database and Kafka.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        attach = getattr(importlib.import_module(f"{__name__}.{module.name}"), "attach", None)
        if attach is not None:
            attach(app)
    return app


def main() -> None:
    """Entry point: exit code 0 is done, 1 is refused or differing, 2 is wrong usage."""
    build_app()()
