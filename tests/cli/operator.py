"""Runs the command in this process."""

import json

from typer.testing import CliRunner

from dualwrite.cli import build_app

APP = build_app()


def dualwrite(*arguments):
    return CliRunner().invoke(APP, [str(argument) for argument in arguments])


def as_json(result):
    assert result.exit_code in (0, 1), result.output
    return json.loads(result.stdout)
