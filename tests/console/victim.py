"""A dual writer that is killed at its worst moment, and the broker with a console beside it."""

import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

from dualwrite.adapters.sql import SqlStore


class BrokerWithConsole:
    """`dualwrite broker --http-port 0 --store URL`, as an operator starts it."""

    def __init__(self, folder, url, *options, listen=("--listen", "127.0.0.1:0")):
        self._log = (folder / "broker.log").open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from dualwrite.cli import main; main()", "broker"),
                *listen,
                *("--data-dir", str(folder / "data"), "--http-port", "0", "--store", url, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.bootstrap = self._line(r"listening on (\S+)")
        self.address = self._line(r"console on (\S+)")
        self.token_file = Path(self._line(r"login token in (.+)"))
        # Whatever it says later must not block it.
        self._drain = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._drain.start()

    @property
    def token(self):
        return self.token_file.read_text().strip()

    def _line(self, pattern):
        line = self.process.stdout.readline()
        match = re.fullmatch(pattern, line.rstrip("\n"))
        assert match, line
        return match[1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self._drain.join(5)
        self.process.stdout.close()
        self._log.close()
        return code


@contextmanager
def broker_with_console(folder, url, *options, **more):
    broker = BrokerWithConsole(folder, url, *options, **more)
    try:
        yield broker
    finally:
        broker.stop()


def make_orders(url):
    """The table of the demo's writer, and the state tables."""
    engine = create_engine(url)
    SqlStore(engine, create=True)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(50))"))
    engine.dispose()


def kill_writer(bootstrap, url, first, last, step):
    """Write orders; SIGKILL at a step of the last one."""
    command = [sys.executable, "-m", "dualwrite.cli.demo_writer", bootstrap, url]
    with subprocess.Popen(
        [*command, str(first), str(last), step],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        for line in writer.stdout:
            if json.loads(line)["event"] == "stopped":
                break
        else:
            raise AssertionError("the writer ended before it could be killed")
        writer.kill()
