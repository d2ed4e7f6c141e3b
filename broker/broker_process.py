"""The broker as a child process that can be killed: for tests of what survives."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

from dualwrite.broker.settings import directory_of, text_of

READY: Final = "listening on "
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
_NOT_STARTED: Final = "the broker is not started: use it as `with BrokerProcess() as broker:`"


def python_module(name: str) -> list[str]:
    """The command that runs a module as this process finds it, with `import_path` as environment.

    `-m` alone would look into the current folder first, where a checkout called dualwrite may lie.
    """
    return [sys.executable, "-P", "-m", name]


def import_path() -> dict[str, str]:
    """Where this process finds modules, for a child's environment."""
    return {"PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in sys.path)}


class BrokerProcessError(RuntimeError):
    """The child did not start."""


class BrokerProcess:
    """`dualwrite broker` as a child process, restarted on the same port and data.

    with BrokerProcess() as broker:
        broker.kill()
        broker.restart()
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        command: list[str] | None = None,
        **more: Any,
    ) -> None:
        self._host = host
        self.port = port
        self._data_dir = None if data_dir is None else directory_of(data_dir)
        self._temporary: str | None = None
        self._settings = {
            name.replace("_", "."): value for name, value in ((settings or {}) | more).items()
        }
        self._environment = environment or {}
        self._command = command or [*python_module("dualwrite.cli"), "broker"]
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._is_listening = False

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect to; the same over restarts."""
        if not self.port:
            raise RuntimeError(_NOT_STARTED)
        return f"{self._host}:{self.port}"

    @property
    def data_dir(self) -> Path:
        """Where the data is."""
        return Path(self._temporary or self._data_dir or "")

    @property
    def pid(self) -> int:
        """The child's process id."""
        if self._process is None:
            raise RuntimeError(_NOT_STARTED)
        return self._process.pid

    @property
    def output(self) -> str:
        """What the child has printed so far, in all its lives."""
        return "".join(self._lines)

    def start(self, *, ready: bool = True) -> "BrokerProcess":
        """Start the child and wait until clients are served, unless `ready` is False."""
        if self._process is not None and self._process.poll() is None:
            raise BrokerProcessError("the broker is started already")
        if self._data_dir is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="dualwrite-broker-")
        arguments = ["--listen", f"{self._host}:{self.port}", "--data-dir", str(self.data_dir)]
        for name, value in self._settings.items():
            arguments += ["--set", f"{name}={text_of(value) or ''}"]
        self._process = subprocess.Popen(
            [*self._command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | import_path() | self._environment,
        )
        told = threading.Event()
        self._is_listening = False
        self._reader = threading.Thread(
            target=self._read, args=(self._process, told), name="broker-output", daemon=True
        )
        self._reader.start()
        if not ready:
            return self
        told.wait(START_SECONDS)
        if not self._is_listening:
            self.kill()
            raise BrokerProcessError(f"the broker did not start:\n{self.output}")
        return self

    def kill(self) -> None:
        """SIGKILL: the process is gone at once."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def pause(self) -> None:
        """SIGSTOP: the process stands still, its sockets stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, and the exit code; also removes a temporary data directory."""
        code = self.terminate()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        return code

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
        return self.wait()

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """Wait until the child has ended; gives its exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        if self._reader is not None:
            self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def restart(self) -> "BrokerProcess":
        """Start again on the same port and data, after `kill` or over a clean stop."""
        self.terminate()
        return self.start()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, process: "subprocess.Popen[str]", told: threading.Event) -> None:
        """Collect the output; tells when the child listens, or has ended without."""
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if line.startswith(READY) and not told.is_set():
                self.port = int(line.rsplit(":", 1)[1])
                self._is_listening = True
                told.set()
        told.set()
