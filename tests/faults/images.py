"""Disk images that are mounted by loop devices; a copy of one is what a power loss leaves.

An image lies in memory, so it holds what the file system has been made to write (fsync) and not what
waits in the page cache. Needs root.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

IMAGE_BYTES = 48 * 2**20
# The file system itself writes what nobody has synced only after so long.
OPTIONS = "loop,commit=300"

Known = TypeVar("Known")


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)


def make_image(path: Path, size: int = IMAGE_BYTES) -> None:
    with path.open("wb") as file:
        file.truncate(size)
    run("mkfs.ext4", "-q", "-F", path)


@contextmanager
def mounted(image: Path, where: Path, options: str = OPTIONS) -> Iterator[Path]:
    where.mkdir(exist_ok=True)
    run("mount", "-o", options, image, where)
    try:
        yield where
    finally:
        run("umount", where)


def pull_the_plug(
    processes: list[int], image: Path, target: Path, tell: Callable[[], Known]
) -> Known:
    """Copy the image at one instant: the processes stand still, and two copies are the same.

    Gives what `tell` says at that instant: it can only know what was said before they were stopped.
    """
    with standing_still(processes):
        content = image.read_bytes()
        while (again := image.read_bytes()) != content:
            content = again  # the kernel was writing back
        target.write_bytes(content)  # now: others have time to come far meanwhile
        return tell()


@contextmanager
def standing_still(processes: list[int]) -> Iterator[None]:
    """Processes and their children are stopped, every thread of them.

    They stop one after another: what the later ones still do and say is on the image, too.
    """
    stopped: list[int] = []
    try:
        for pid in processes:
            _stop(pid, stopped)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _stop(pid: int, stopped: list[int]) -> None:
    """The parent first: from then on it has no new children."""
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        return  # a child that has just ended
    stopped.append(pid)
    while not _stands_still(pid):
        time.sleep(0)
    for child in _children(pid):
        _stop(child, stopped)


def _stands_still(pid: int) -> bool:
    """A call into the kernel, such as a sync, is finished first."""
    states = (_stat(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(state in "TtZX" for state in states)


def _children(pid: int) -> list[int]:
    every = Path("/proc").glob("[0-9]*/stat")
    return [int(path.parent.name) for path in every if _stat(path)[1] == str(pid)]


def _stat(path: Path) -> list[str]:
    """State, parent and what follows; of a process that is gone, that it is gone."""
    try:
        # The command's name is in brackets and may itself hold spaces and brackets.
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", ""]
