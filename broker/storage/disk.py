"""The few things the storage asks of a disk, and the real one.

Everything that must survive goes through this port, so that a simulated disk can tear, lose and
refuse exactly what a real one may. Paths are relative to the data directory and use `/`.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from dualwrite.broker.storage.errors import DataDirInUse, StorageFailed

Buffer = bytes | bytearray | memoryview

# Linux takes at most 1024 buffers in one call.
IOV_MAX = 1024
OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
LOCK_NAME = "lock"


class File(Protocol):
    """One open file. Writes are whole or raise."""

    def pread(self, size: int, offset: int) -> bytes: ...
    def pwrite(self, data: Buffer, offset: int) -> None: ...
    def writev(self, buffers: Sequence[Buffer], offset: int) -> None: ...
    def fdatasync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """One data directory, held by one process."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def create(self, path: str) -> File:
        """Make an empty file in place of whatever has that name."""

    def exists(self, path: str) -> bool: ...
    def listdir(self, path: str) -> list[str]: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def fsync_dir(self, path: str) -> None: ...

    def preallocate(self, path: str, size: int) -> None:
        """Make a file of `size` bytes whose blocks are taken from the disk at once."""

    def free_bytes(self) -> int: ...
    def random_bytes(self, count: int) -> bytes: ...
    def close(self) -> None: ...


def is_out_of_space(error: OSError) -> bool:
    return error.errno in OUT_OF_SPACE


def sync(file: File, path: str) -> None:
    """fdatasync that can only succeed or end everything.

    After a failed one the kernel may have dropped the pages, so that trying again proves nothing;
    that holds for a lack of space that shows only now, too.
    """
    try:
        file.fdatasync()
    except OSError as error:
        raise StorageFailed(f"fdatasync of {path} failed: {error}") from error


def sync_names(disk: Disk, directory: str) -> None:
    """The same for the names in a directory."""
    try:
        disk.fsync_dir(directory)
    except OSError as error:
        raise StorageFailed(
            f"fsync of {directory or 'the data directory'} failed: {error}"
        ) from error


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size and (more := os.pread(self._fd, size - have, offset + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def pwrite(self, data: Buffer, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def writev(self, buffers: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(buffers), IOV_MAX):
            part = buffers[first : first + IOV_MAX]
            total = sum(map(len, part))
            written = os.pwritev(self._fd, part, offset)
            if written < total:
                # A short write is rare (a signal, a nearly full disk): the plain way will do.
                self.pwrite(memoryview(b"".join(part))[written:], offset + written)
            offset += total

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)

    def detach(self) -> int:
        """Hand the descriptor to another owner."""
        return self._fd


class RealDisk:
    """A directory of the file system, private to its owner and locked against a second process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        self._lock = os.open(self._at(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise DataDirInUse(f"data directory {self.path} is held by another process") from error

    def _at(self, path: str) -> str:
        return f"{self.path}/{path}" if path else self.path

    def open(self, path: str) -> RealFile:
        return RealFile(os.open(self._at(path), os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return RealFile(os.open(self._at(path), flags, 0o600))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def mkdir(self, path: str) -> None:
        os.mkdir(self._at(path), 0o700)

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def fsync_dir(self, path: str) -> None:
        fd = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def preallocate(self, path: str, size: int) -> None:
        file = self.create(path)
        try:
            # Written, not only allocated: overwriting a written block needs no metadata, so it is
            # both faster and cannot run out of space.
            chunk = bytes(min(size, 1 << 20))
            for offset in range(0, size, len(chunk) or 1):
                file.pwrite(chunk[: size - offset], offset)
        except OSError:
            file.close()
            self.unlink(path)
            raise
        file.close()

    def free_bytes(self) -> int:
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def close(self) -> None:
        os.close(self._lock)
