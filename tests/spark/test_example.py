"""The example must end as it says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_pipeline_that_is_killed_agrees_in_the_end():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "spark_pipeline.py"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
