"""What the README shows runs, and what it links to exists."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_first_dual_write_runs_as_it_stands(tmp_path):
    snippet, *_ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(snippet.splitlines()) <= 15

    for _ in range(2):  # who has seen it once tries it again
        done = subprocess.run(
            [sys.executable, "-c", snippet],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert "database='committed', kafka='committed'" in done.stdout


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_commands_that_are_named_exist():
    from dualwrite.cli import build_app
    from tests.cli.operator import dualwrite

    names = {command.name for command in build_app().registered_commands}
    groups = {group.name for group in build_app().registered_groups}

    assert {"demo", "recover", "doctor"} <= names
    assert {"txn", "schema"} <= groups
    for command in ("list", "describe", "explain", "resolve", "force-terminate"):
        assert dualwrite("txn", command, "--help").exit_code == 0
