"""`dualwrite demo` is the project's promise in one command."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.dualwrite.waiting import wait_until


def test_demo_kills_the_writer_twice_and_both_sides_agree():
    done = subprocess.run(
        [sys.executable, "-m", "dualwrite.cli", "demo", "--orders", "9", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["agree"] is True
    after_decision, before_decision, end = report["scenes"]
    assert after_decision["rows"] == [1, 2, 3]
    assert after_decision["records"] == [1, 2]
    assert after_decision["recovery"] == "committed"
    assert before_decision["rows"] == before_decision["records"] == [1, 2, 3, 4, 5]
    assert before_decision["recovery"] == "aborted"
    assert end["rows"] == end["records"] == [1, 2, 3, 4, 5, 7, 8, 9]


def test_interrupted_demo_leaves_no_writer():
    """An interrupt ends the demo, and the writer that it has started."""
    command = [sys.executable, "-m", "dualwrite.cli", "demo", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as demo:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        wait_until(lambda: children.read_text().split())
        (writer,) = children.read_text().split()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(30) != 0
    # An interrupt that strikes before the demo knows its writer leaves it to find its reader gone.
    wait_until(lambda: has_ended(writer))


def has_ended(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def test_demo_beside_a_folder_of_the_same_name(tmp_path):
    """As in the folder that holds the checkout: it must not be taken for the package."""
    (tmp_path / "dualwrite").mkdir()
    command = [sys.executable, "-P", "-m", "dualwrite.cli", "demo", "--orders", "3", "--json"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
