"""Processes that stop at a point: forked from one that has everything imported already.

    python -m tests.crash.victims

reads jobs as JSON lines, forks a process for each, and answers with its pid and, at its end, its
exit status. A victim that reaches its point makes the file `reached` and waits to be killed, or for
the file `go`. What became of its block is in the file `result`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tests.crash.places import Case
from tests.crash.points import SENT, STEPS, stop_at, watch_sockets
from tests.crash.watched_disk import CALLS, WatchedDisk


class Victim:
    """One process at work on one case."""

    def __init__(self, folder, pid, read_line):
        self.folder = Path(folder)
        self.pid = pid
        self._read_line = read_line

    def has_reached(self):
        return (self.folder / "reached").exists()

    def is_over(self):
        return (self.folder / "result").exists()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def pause(self):
        """SIGSTOP: every thread stands still, connections and locks stay."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.pid, signal.SIGCONT)

    def go_on(self):
        (self.folder / "go").touch()

    def wait(self):
        return json.loads(self._read_line())["status"]

    @property
    def result(self):
        return (self.folder / "result").read_text()


class Nursery:
    """The process from which victims are forked."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.victims"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, case, point, folder, *, writes=True, is_async=False, **options):
        job = {
            "case": case.to_json(),
            "point": point,
            "folder": str(folder),
            "writes": writes,
            "is_async": is_async,
            "options": options,
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pid = json.loads(self._process.stdout.readline())["pid"]
        return Victim(folder, pid, self._process.stdout.readline)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve():
    import_everything()
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            live(job)
        print(json.dumps({"pid": pid}), flush=True)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": status}), flush=True)


def import_everything():
    """Once, before the forks; nothing is connected."""
    import dualwrite.adapters.rocksdb
    import dualwrite.adapters.sql
    import dualwrite.adapters.zookeeper  # noqa: F401

    for driver in ("sqlite", "postgresql+psycopg", "mysql+pymysql"):
        with suppress(ModuleNotFoundError):
            create_engine(f"{driver}://")
    for driver in ("sqlite+aiosqlite", "postgresql+psycopg_async"):
        with suppress(ModuleNotFoundError):
            create_async_engine(f"{driver}://")


def live(job):
    folder = Path(job["folder"])
    try:
        result = work(job, Case.from_json(job["case"]), job["point"], folder)
    except BaseException as error:  # noqa: BLE001 - the test reads it
        result = f"{type(error).__name__}: {error}"
    (folder / "unfinished").write_text(result)
    os.rename(folder / "unfinished", folder / "result")
    os._exit(0)


def work(job, case, point, folder):
    """Open the writer and place order 1, stopping at the point."""

    def reach():
        if not (folder / "reached").exists():
            stop_at(folder)

    def on_step(name):
        if disk is not None and name == "committing":
            disk.arm()
        if name == STEPS.get(point) and (is_writing or point in ("C1", "R1", "R2", "R3")):
            reach()

    # A recoverer writes, too, if it sends something again.
    is_writing = [] if job["writes"] else [True]
    disk = WatchedDisk(case.kind, point, folder) if (case.kind, point) in CALLS else None
    if point == "C0":
        reach()
    if point in SENT:
        watch_sockets(point, int(case.bootstrap.rpartition(":")[2]), reach)

    def begun():
        if point == "C2":
            reach()

    def opened():
        """Whether there is an order to write."""
        is_writing.append(True)
        return job["writes"]

    options = job["options"] | {"on_step": on_step}
    if job["is_async"]:
        return asyncio.run(write_in_a_loop(case, opened, begun, options))
    return write(case, opened, begun, options)


def write(case, opened, begun, options):
    place = case.place
    with case.writer(place, **options) as dw:
        if not opened():
            return "recovered"
        with dw.transaction() as tx:
            begun()
            place.order(tx, 1)
            tx.produce(case.topic, key="1", value=b"x")
            tx.produce(case.topic, key="1", value=b"y")
        return f"{tx.outcome.database} {tx.outcome.kafka}"


async def write_in_a_loop(case, opened, begun, options):
    place = case.place
    async with case.async_writer(place, **options) as dw:
        if not opened():
            return "recovered"
        async with dw.transaction() as tx:
            begun()
            await place.async_order(tx, 1)
            tx.produce(case.topic, key="1", value=b"x")
            tx.produce(case.topic, key="1", value=b"y")
        return f"{tx.outcome.database} {tx.outcome.kafka}"


if __name__ == "__main__":
    serve()
