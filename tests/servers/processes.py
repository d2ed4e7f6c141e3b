"""Starting and ending the real servers that tests run against."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


class ServerUnavailable(Exception):
    """The server cannot be run on this machine; the message says what is missing."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Account:
    """Who a server runs as: database servers refuse root, so root hands over to `nobody`."""

    def __init__(self) -> None:
        self.is_switched = os.geteuid() == 0
        entry = pwd.getpwnam("nobody") if self.is_switched else pwd.getpwuid(os.geteuid())
        self.uid, self.gid = entry.pw_uid, entry.pw_gid

    def own_dir(self, prefix: str) -> Path:
        """Make a private directory; pytest's own ones cannot be entered by another user."""
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        if self.is_switched:
            os.chown(directory, self.uid, self.gid)
        return directory

    def popen(self, command: Sequence[str | Path], log: Path, cwd: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(part) for part in command],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env=_environment(cwd),
                start_new_session=True,
                **self._switch(),
            )

    def run(self, command: Sequence[str | Path], cwd: Path) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=_environment(cwd),
            check=False,
            **self._switch(),
        )
        if done.returncode != 0:
            raise ServerUnavailable(f"{command[0]} failed: {done.stderr[-2000:]}")

    def can_run(self, program: Path) -> bool:
        """True if the account can reach and start the program where it lies."""
        if not self.is_switched:
            return os.access(program, os.X_OK)
        try:
            subprocess.run(
                [str(program), "--version"], capture_output=True, check=True, **self._switch()
            )
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def _switch(self) -> dict[str, Any]:
        if not self.is_switched:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def _environment(home: Path) -> Mapping[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}


def wait_until_up(
    process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path, name: str
) -> None:
    """Wait until the server answers; its log explains a server that ended instead."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_up():
        if process.poll() is not None or time.monotonic() > deadline:
            end(process)
            raise ServerUnavailable(f"{name} did not start:\n{log.read_text()[-3000:]}")
        time.sleep(POLL_SECONDS)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill one process that we started and reap it."""
    process.kill()
    process.wait()


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
