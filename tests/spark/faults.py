"""Planted faults: a sink whose processes fail once at a named point.

A fault is a file named after its point that says what to do: raise, or kill the process itself, its
executor, the driver's JVM or the broker, or stall until `release`. The process that takes the file away
is the one that fails, so each fault strikes once, in whichever process comes by first.
"""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from dualwrite.recipes.spark.engine import Engine

FOLDER = "DUALWRITE_FAULTS"

STALL_SECONDS_MAX = 600
"""Longer than any test, and an end all the same for a process that nobody releases."""
BEFORE = {"deciding": "before_decide", "finishing": "before_done", "closing": "before_close"}
AFTER = {"opening": "opened", "deciding": "decided", "finishing": "done"}
POINTS_OF_TASKS = ("before_begin", "mid_write", "before_prepare", "prepared")


class Planted(RuntimeError):
    """The fault that says `raise`."""


def plant(folder: Path, point: str, action: str) -> None:
    for mark in ("pid.stalled", "pid.released"):
        (folder / mark).unlink(missing_ok=True)
    (folder / point).write_text(action)


def left(folder: Path) -> list[str]:
    """Faults that nobody has come by yet."""
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("pid."))


def release(folder: Path) -> None:
    """Let the stalled process go on."""
    (folder / "pid.released").touch()


def is_stalled(folder: Path) -> bool:
    return (folder / "pid.stalled").exists()


def _stall(folder: Path) -> None:
    (folder / "pid.stalled").write_text(str(os.getpid()))
    deadline = time.monotonic() + STALL_SECONDS_MAX
    while not (folder / "pid.released").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def at(point: str) -> None:
    folder = Path(os.environ[FOLDER])
    taken = folder / f".{point}.{os.getpid()}"
    try:
        (folder / point).rename(taken)
    except FileNotFoundError:
        return
    action = taken.read_text()
    taken.unlink()
    if action == "raise":
        raise Planted(point)
    if action == "stall":
        _stall(folder)
        return
    os.kill(_target(folder, action), signal.SIGKILL)
    if action in ("jvm", "executor"):
        # Its children end when they notice; nothing more may happen here meanwhile.
        os.kill(os.getpid(), signal.SIGKILL)


def _target(folder, action):
    if action == "self":
        return os.getpid()
    if action == "executor":
        # A worker is a child of PySpark's daemon, which is a child of the executor.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])
    return int((folder / f"pid.{action}").read_text())


class FaultyEngine(Engine):
    def transactions(self):
        return FaultyTransactions(super().transactions())

    @contextmanager
    def decisions(self, home=None):
        with super().decisions(home) as log:
            yield FaultyLog(log)


class FaultyLog:
    def __init__(self, log):
        self._log = log

    def __getattr__(self, name):
        return getattr(self._log, name)

    def update(self, change):
        kind = change.__qualname__.split(".")[0]
        if kind in BEFORE:
            at(BEFORE[kind])
        ledger = self._log.update(change)
        if kind in AFTER:
            at(AFTER[kind])
        return ledger

    @contextmanager
    def transaction(self):
        """The user's rows and the decision, which is all that is decided by one."""
        with self._log.transaction() as transaction:
            yield transaction
            at(BEFORE["deciding"])
        at(AFTER["deciding"])


class FaultyTransactions:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def begin(self, partition, attempt_number):
        at("before_begin")
        return FaultyTask(self._real.begin(partition, attempt_number))

    def inspect(self, transactional_id):
        return FaultyFound(self._real.inspect(transactional_id))


class FaultyTask:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def send_encoded(self, topic, partition, encoded, count):
        self._real.send_encoded(topic, partition, encoded, count)
        if (Path(os.environ[FOLDER]) / "mid_write").exists():
            # The fault must find the transaction open at the broker.
            self._real._producer.flush()
            at("mid_write")

    def prepare(self):
        at("before_prepare")
        participant = self._real.prepare()
        at("prepared")
        return participant


class FaultyFound:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def commit(self, state):
        self._real.commit(state)
        at("first_ended")
