"""Stops a process inside its database's COMMIT, where the database is a library: at a system call.

Linux can ask another process before a system call is done (seccomp's user notification, for all
threads at once since 5.7); that takes neither rights nor tools. The victim forks a watcher before it
has threads or locks, and filters itself once COMMIT is next. In an event loop COMMIT is made by a
thread of the driver's.
"""

import ctypes
import errno
import fcntl
import functools
import os
import platform
import select
import socket
import struct
import subprocess
import sys
from contextlib import suppress

from tests.crash.points import stop_at

NUMBERS = {
    "x86_64": {
        "seccomp": 317, "write": 1, "pwrite64": 18, "fsync": 74, "fdatasync": 75, "unlink": 87,
    },
    "aarch64": {
        "seccomp": 277, "write": 64, "pwrite64": 68, "fsync": 82, "fdatasync": 83, "unlink": 35,
    },
}  # fmt: skip
"""There is no unlink on aarch64, only unlinkat."""

_NO_NEW_PRIVILEGES = 38
_SET_FILTER = 1
_ALL_THREADS, _WITH_LISTENER, _REFUSAL_IS_AN_ERROR = 1, 8, 16
_LOAD, _JUMP_IF, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")


def removes_the_journal(call, target, before):
    """SQLite's COMMIT is done once its journal is gone; in WAL mode, once its frames are written."""
    return call == "unlink" or (call == "pwrite64" and target.endswith("-wal"))


def syncs_the_end(call, target, before):
    """The directory, as once before for the new journal; or the log, as perhaps for its header."""
    if call not in ("fsync", "fdatasync"):
        return False
    if target.endswith("-wal"):
        return before.count("pwrite64") > 1  # a frame is two
    return os.path.isdir(target) and "unlink" in before


def writes_to_the_log(call, target, before):
    """RocksDB's COMMIT is one record in its log, which is there whole or not at all."""
    return call == "write" and target.endswith(".log")


def syncs_the_log(call, target, before):
    """The record is in the log: a power loss could take it, the end of a process cannot."""
    return call == "fdatasync" and target.endswith(".log")


CALLS = {
    ("sqlite", "C9a"): removes_the_journal,
    ("sqlite", "C9b"): syncs_the_end,
    ("rocksdb", "C9a"): writes_to_the_log,
    ("rocksdb", "C9b"): syncs_the_log,
}


class WatchedDisk:
    """The watcher of this process; it lives as long."""

    def __init__(self, kind, point, folder):
        self._channel, other = socket.socketpair()
        victim = os.getpid()
        if os.fork() == 0:
            try:
                self._channel.close()
                _watch(other, victim, CALLS[kind, point], folder)
            finally:
                os._exit(0)
        other.close()

    def arm(self):
        """From now on this process asks before it writes, syncs or removes a file."""
        listener = _filter_this_process()
        socket.send_fds(self._channel, [b"x"], [listener])
        os.close(listener)


def _watch(channel, victim, is_the_call, folder):
    message, listeners, _, _ = socket.recv_fds(channel, 1, 1)
    if not message:
        return  # the victim has ended before COMMIT
    [listener] = listeners
    names = {number: name for name, number in _numbers().items()}

    def is_over():
        return os.getppid() != victim

    before = []
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while not is_over():
        if not waiting.poll(50):
            continue
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except OSError:
            continue  # it was interrupted, and asks again, or it is dead
        asked_as, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        call = names[number]
        if is_the_call(call, _target(thread, call, arguments), before):
            stop_at(folder, is_over)
        before.append(call)
        with suppress(FileNotFoundError):  # as above
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(asked_as, 0, 0, _CONTINUE))


def _target(thread, call, arguments):
    """The file that the call is about, if it is an open one."""
    if call == "unlink":
        return ""
    with suppress(OSError):
        return os.readlink(f"/proc/{thread}/fd/{arguments[0]}")
    return ""


def _numbers():
    return NUMBERS[platform.machine()]


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("first", ctypes.POINTER(_Instruction))]


def _filter_this_process():
    """Ask about the calls of `NUMBERS`; gives the descriptor on which they are announced."""
    calls = dict(_numbers())
    seccomp = calls.pop("seccomp")
    instructions = [
        _Instruction(_LOAD, 0, 0, 0),  # the number of the call
        *(
            _Instruction(_JUMP_IF, len(calls) - at, 0, number)
            for at, number in enumerate(calls.values())
        ),
        _Instruction(_RETURN, 0, 0, _ALLOW),
        _Instruction(_RETURN, 0, 0, _ASK),
    ]
    lines = (_Instruction * len(instructions))(*instructions)
    program = _Program(len(instructions), lines)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, *(ctypes.c_ulong(value) for value in (1, 0, 0, 0)))
    flags = _ALL_THREADS | _WITH_LISTENER | _REFUSAL_IS_AN_ERROR
    arguments = (ctypes.c_long(value) for value in (seccomp, _SET_FILTER, flags))
    listener = libc.syscall(*arguments, ctypes.byref(program))
    if listener < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {errno.errorcode[code]}")
    return listener


@functools.cache
def why_not():
    """Why a process cannot be stopped in a system call here; empty if it can."""
    command = [sys.executable, "-m", "tests.crash.watched_disk"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip().rpartition("\n")[2]


if __name__ == "__main__":
    _filter_this_process()
    os._exit(0)
