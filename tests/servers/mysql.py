"""MySQL or MariaDB: the one named in the environment, a local program, or a container."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from tests.servers.processes import (
    Account,
    ServerUnavailable,
    end,
    free_port,
    remove,
    wait_until_up,
)

URL_VARIABLE = "DUALWRITE_TEST_MYSQL_URL"
IMAGE = "mariadb:11"


class MySqlServer:
    """A local MariaDB or MySQL server on its own data directory and a free loopback port."""

    def __init__(self, options: tuple[str, ...] = ()) -> None:
        self._program = find_program()
        self._account = Account()
        self._dir = self._account.own_dir("dualwrite-mysql-")
        self._log = self._dir / "server.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/test?charset=utf8mb4"

    def start(self) -> None:
        data = self._dir / "data"
        if not data.exists():
            self._install(data)
        init = self._dir / "init.sql"
        init.write_text(
            "CREATE DATABASE IF NOT EXISTS test;\n"
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' IDENTIFIED BY '';\n"
            "GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        init.chmod(0o644)
        command = [
            self._program,
            "--no-defaults",
            f"--datadir={data}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            f"--socket={self._dir / 'server.sock'}",
            f"--pid-file={self._dir / 'server.pid'}",
            "--skip-name-resolve",
            f"--init-file={init}",
            "--innodb-flush-log-at-trx-commit=1",
            *self._options,
        ]
        self._process = self._account.popen(command, self._log, self._dir)
        wait_until_up(self._process, self._answers, self._log, "mysql")

    def kill(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None

    def crash(self) -> None:
        """Kill it and start it again on the same data and port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def remove(self) -> None:
        self.stop()
        remove(self._dir)

    def _install(self, data: Path) -> None:
        install = shutil.which("mariadb-install-db")
        if install is None:
            command: tuple[str | Path, ...] = (
                self._program,
                "--no-defaults",
                "--initialize-insecure",
                f"--datadir={data}",
            )
        else:
            command = (
                install,
                "--no-defaults",
                f"--datadir={data}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            )
        self._account.run(command, cwd=self._dir)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                return len(connection.recv(5)) == 5  # the server speaks first
        except OSError:
            return False


def find_program() -> str:
    for name in ("mariadbd", "mysqld"):
        for folder in (None, "/usr/sbin:/usr/local/sbin:/usr/libexec"):
            found = shutil.which(name, path=folder)
            if found is not None:
                return found
    raise ServerUnavailable(
        f"no MySQL: {URL_VARIABLE} is not set, and neither mariadbd, mysqld nor Docker was found"
    )


class MySqlContainer:
    """The same server from an image, where a Docker engine answers and nothing is installed."""

    def __init__(self) -> None:
        if shutil.which("docker") is None or importlib.util.find_spec("testcontainers") is None:
            raise ServerUnavailable(find_failure())
        engine = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
        if engine.returncode != 0:
            raise ServerUnavailable(find_failure() + " (the Docker engine does not answer)")
        from testcontainers.mysql import MySqlContainer as Container

        self._container = Container(IMAGE, dialect="pymysql")
        self._container.start()
        self.url = str(self._container.get_connection_url())

    def remove(self) -> None:
        self._container.stop()


def find_failure() -> str:
    try:
        find_program()
    except ServerUnavailable as missing:
        return str(missing)
    return "no Docker engine"


def start_mysql() -> "tuple[str, MySqlServer | MySqlContainer | None]":
    """Give a URL and what must be removed at the end; `ServerUnavailable` says what is missing."""
    if importlib.util.find_spec("pymysql") is None:
        raise ServerUnavailable("the package PyMySQL is not installed")
    named = os.environ.get(URL_VARIABLE)
    if named:
        return named, None
    try:
        local = MySqlServer()
    except ServerUnavailable:
        container = MySqlContainer()
        return container.url, container
    local.start()
    return local.url, local
