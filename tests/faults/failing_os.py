"""Runs the broker with one durable system call that goes wrong.

    python -m tests.faults.failing_os --at 17 --how half --counter FILE -- broker --listen ...

The broker reaches the disk only through `os`, so replacing these functions in its process enumerates
every durable call without a compiler or ptrace; of `open` only what makes a file or empties one, which
is called "create". That nothing gets past it is what test_call_list.py holds. `--counter` names a file
that gets a line for every call, its kind and its path, so that a run without `--at` learns which there
are. `--after` starts counting only once that file exists, so that a test can arm the fault in the
middle of a scenario. `--looks-ms` lets the broker ask that often whether a checkpoint is due, so that a
short life has many.

kill: die before the call. half: write half of the bytes, then die; what is no write has no half, and
nothing goes wrong. eio, enospc: the call fails.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("kill", "half", "eio", "enospc")
WRITES = ("pwrite", "pwritev")
DURABLE = (*WRITES, "fdatasync", "fsync", "rename", "ftruncate", "unlink", "mkdir", "rmdir")
KINDS = (*DURABLE, "create")

_real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in (*DURABLE, "open")}


def can_go(kind: str, how: str) -> bool:
    """Whether a call of this kind can go wrong in this way."""
    return how != "half" or kind in WRITES


def _path_of(what: Any) -> str:
    """What a call is about: the path that it is given, or that of the file that it is given."""
    if not isinstance(what, int):
        return str(what)
    try:
        return os.readlink(f"/proc/self/fd/{what}")
    except OSError:
        return f"descriptor {what}"  # no such directory here


class Fault:
    """Counts durable calls and spoils one of them."""

    def __init__(self, at: int, how: str, counter: str, after: str | None) -> None:
        self._at = at
        self._how = how
        self._counter = os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._after = after
        self._seen = 0

    def install(self) -> None:
        for name in DURABLE:
            setattr(os, name, self._wrap(name))
        setattr(os, "open", self._open)  # noqa: B010 - mypy knows its type

    def _wrap(self, name: str) -> Callable[..., Any]:
        real = _real[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "mkdir" or not os.path.isdir(args[0]):  # else it asks for nothing
                self._count(name, args)
            return real(*args, **kwargs)

        return call

    def _open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        is_made = flags & os.O_CREAT and not os.path.exists(path)
        if is_made or flags & os.O_TRUNC:
            self._count("create", (path, flags))
        descriptor: int = _real["open"](path, flags, *args, **kwargs)
        return descriptor

    def _count(self, name: str, args: tuple[Any, ...]) -> None:
        if self._after is not None and not os.path.exists(self._after):
            return
        self._seen += 1
        os.write(self._counter, f"{name} {_path_of(args[0])}\n".encode())
        if self._seen == self._at and can_go(name, self._how):
            self._spoil(name, args)

    def _spoil(self, name: str, args: tuple[Any, ...]) -> None:
        if self._how == "eio":
            raise OSError(errno.EIO, f"injected into {name}")
        if self._how == "enospc":
            raise OSError(errno.ENOSPC, f"injected into {name}")
        if self._how == "half":
            data = b"".join(args[1]) if name == "pwritev" else bytes(args[1])
            _real["pwrite"](args[0], data[: len(data) // 2], args[2])
        os.kill(os.getpid(), signal.SIGKILL)


def counted(counter: Path) -> list[tuple[str, str]]:
    """The calls that a broker's counter tells of: their kinds and paths."""
    lines = [line.split(" ", 1) for line in counter.read_text().splitlines()]
    return [(kind, path) for kind, path in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--how", choices=WAYS, default="kill")
    parser.add_argument("--counter", required=True)
    parser.add_argument("--after")
    parser.add_argument("--looks-ms", type=int)
    split = sys.argv.index("--")
    options = parser.parse_args(sys.argv[1:split])
    Fault(options.at, options.how, options.counter, options.after).install()

    from dualwrite.broker import node
    from dualwrite.cli import main as command_line

    if options.looks_ms is not None:
        setattr(node, "CHECKPOINT_LOOK_MS", options.looks_ms)  # noqa: B010 - it is final

    sys.argv = ["dualwrite", *sys.argv[split + 1 :]]
    command_line()


if __name__ == "__main__":
    main()
