"""A disk in memory that forgets what a real one may forget.

Writes are visible at once and durable only after fdatasync; new names are durable only after fsync of
their directory. `crash` is a power loss: each file keeps what was synced and a random prefix of what was
written since, the last write of it perhaps torn. `kill` is the death of the process alone.

Every operation that changes something counts; `fault` is asked before each and may stop, tear or fail
it, so that a test can walk through all of them.
"""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from dualwrite.broker.storage.disk import Buffer
from dualwrite.broker.storage.errors import DataDirInUse

SECTOR = 512


class PowerLoss(BaseException):
    """The machine stops here. Not an Exception, so that nothing on the way up handles it."""


class Fault(Enum):
    STOP_BEFORE = "before"
    STOP_HALFWAY = "half"
    STOP_AFTER = "after"
    EIO = "EIO"
    ENOSPC = "ENOSPC"


FaultPlan = Callable[[int, str, str], Fault | None]


@dataclass(slots=True, eq=False)
class _Inode:
    data: bytearray
    durable: bytearray
    # (offset, bytes) for a write, (size, None) for a truncation, since the last fdatasync.
    unsynced: list[tuple[int, bytes | None]]

    def apply(self, offset: int, data: bytes | None) -> None:
        _change(self.durable, offset, data)


class _Directory:
    __slots__ = ("durable", "names", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.unsynced: list[tuple[str, _Inode | _Directory | None]] = []

    def put(self, name: str, node: "_Inode | _Directory | None") -> None:
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.unsynced.append((name, node))


def _change(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        if offset < len(target):
            del target[offset:]
        else:
            target.extend(bytes(offset - len(target)))
        return
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


class MemoryFile:
    __slots__ = ("_disk", "_generation", "_inode", "path")

    def __init__(self, disk: "MemoryDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self.path = path
        self._inode = inode
        self._generation = disk.generation

    def pread(self, size: int, offset: int) -> bytes:
        assert self._generation == self._disk.generation
        return bytes(self._inode.data[offset : offset + size])

    def pwrite(self, data: Buffer, offset: int) -> None:
        self.writev((data,), offset)

    def writev(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        assert self._generation == self._disk.generation
        inode = self._inode
        fault = self._disk.ask("write", self.path)
        error = 0
        if fault is Fault.STOP_HALFWAY or fault is Fault.ENOSPC:
            data = data[: len(data) // 2]
            error = errno.ENOSPC
        growth = offset + len(data) - len(inode.data)
        if growth > 0:
            room = self._disk.room()
            if growth > room:
                data = data[: max(0, len(data) - growth + room)]
                error = errno.ENOSPC
            self._disk.used += max(0, offset + len(data) - len(inode.data))
        if data:
            _change(inode.data, offset, data)
            inode.unsynced.append((offset, data))
        self._disk.finish(fault)
        if error:
            raise OSError(error, "no space left", self.path)

    def fdatasync(self) -> None:
        assert self._generation == self._disk.generation
        fault = self._disk.ask("fdatasync", self.path)
        inode = self._inode
        if fault is not Fault.STOP_HALFWAY:
            for offset, data in inode.unsynced:
                inode.apply(offset, data)
            inode.unsynced.clear()
        self._disk.finish(fault)

    def truncate(self, size: int) -> None:
        assert self._generation == self._disk.generation
        fault = self._disk.ask("truncate", self.path)
        self._disk.used += size - len(self._inode.data)
        _change(self._inode.data, size, None)
        self._inode.unsynced.append((size, None))
        self._disk.finish(fault)

    def size(self) -> int:
        return len(self._inode.data)

    def close(self) -> None:
        pass


class MemoryDisk:
    """See the module. `capacity` in bytes of file contents; None is unlimited."""

    def __init__(self, capacity: int | None = None, seed: int = 0) -> None:
        self._root = _Directory()
        self._random = Random(seed)
        self._is_open = False
        self._is_down = False
        self.capacity = capacity
        self.used = 0
        self.operations = 0
        self.generation = 0
        self.fault: FaultPlan | None = None

    # -- the test's side ---------------------------------------------------------------------

    def attach(self) -> "MemoryDisk":
        """Take the place of a process's lock; a second holder is refused."""
        if self._is_open:
            raise DataDirInUse("memory disk is in use")
        self._is_open = True
        return self

    def kill(self) -> None:
        """The process dies; what it wrote stays in the page cache."""
        self._is_open = self._is_down = False
        self.generation += 1
        self.fault = None

    def crash(self, random: Random | None = None, *, reorder: bool = False) -> None:
        """The power goes; without `random` nothing unsynced survives.

        With `reorder` any subset of the unsynced sectors survives instead of a prefix.
        """
        self.kill()
        self._crash_directory(self._root, random, reorder)
        self.used = self._measure(self._root)

    def room(self) -> int:
        return 1 << 62 if self.capacity is None else max(0, self.capacity - self.used)

    def ask(self, operation: str, path: str) -> Fault | None:
        if self._is_down:
            raise PowerLoss("the machine is off")
        self.operations += 1
        if self.fault is None:
            return None
        fault = self.fault(self.operations, operation, path)
        if fault is Fault.STOP_BEFORE:
            self._is_down = True
            raise PowerLoss(f"before {operation} of {path}")
        if fault is Fault.EIO:
            raise OSError(errno.EIO, "input/output error", path)
        if fault is Fault.ENOSPC and operation != "write":
            raise OSError(errno.ENOSPC, "no space left", path)
        return fault

    def finish(self, fault: Fault | None) -> None:
        if fault is Fault.STOP_AFTER or fault is Fault.STOP_HALFWAY:
            self._is_down = True
            raise PowerLoss(fault.value)

    def contents(self, path: str) -> bytearray:
        """The live bytes of a file, for a test to damage; damage is durable at once."""
        inode = self._inode(path)
        for offset, data in inode.unsynced:
            inode.apply(offset, data)
        inode.unsynced.clear()
        inode.data = inode.durable
        inode.durable = bytearray(inode.data)
        return inode.data

    def damage(self, path: str, change: Callable[[bytearray], None]) -> None:
        inode = self._inode(path)
        for offset, data in inode.unsynced:
            inode.apply(offset, data)
        inode.unsynced.clear()
        change(inode.data)
        inode.durable[:] = inode.data

    def _crash_directory(self, directory: _Directory, random: Random | None, reorder: bool) -> None:
        if random is not None:
            for name, node in directory.unsynced[: random.randint(0, len(directory.unsynced))]:
                if node is None:
                    directory.durable.pop(name, None)
                else:
                    directory.durable[name] = node
        directory.names = dict(directory.durable)
        directory.unsynced.clear()
        for node in directory.names.values():
            if isinstance(node, _Directory):
                self._crash_directory(node, random, reorder)
            else:
                _crash_file(node, random, reorder)

    def _measure(self, directory: _Directory) -> int:
        return sum(
            self._measure(node) if isinstance(node, _Directory) else len(node.data)
            for node in directory.names.values()
        )

    # -- the port ----------------------------------------------------------------------------

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path, self._inode(path))

    def create(self, path: str) -> MemoryFile:
        fault = self.ask("create", path)
        directory, name = self._parent(path)
        old = directory.names.get(name)
        assert not isinstance(old, _Directory)
        if old is not None:
            self.used -= len(old.data)
            old.data = bytearray()
            old.unsynced.append((0, None))
            inode = old
        else:
            inode = _Inode(bytearray(), bytearray(), [])
            directory.put(name, inode)
        self.finish(fault)
        return MemoryFile(self, path, inode)

    def exists(self, path: str) -> bool:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.names

    def listdir(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def mkdir(self, path: str) -> None:
        fault = self.ask("mkdir", path)
        directory, name = self._parent(path)
        if name in directory.names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        directory.put(name, _Directory())
        self.finish(fault)

    def rmdir(self, path: str) -> None:
        fault = self.ask("rmdir", path)
        directory, name = self._parent(path)
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        directory.put(name, None)
        self.finish(fault)

    def rename(self, old: str, new: str) -> None:
        fault = self.ask("rename", old)
        source, source_name = self._parent(old)
        target, target_name = self._parent(new)
        node = source.names[source_name]
        replaced = target.names.get(target_name)
        if isinstance(replaced, _Inode):
            self.used -= len(replaced.data)
        target.put(target_name, node)
        source.put(source_name, None)
        self.finish(fault)

    def unlink(self, path: str) -> None:
        fault = self.ask("unlink", path)
        self.used -= len(self._inode(path).data)
        directory, name = self._parent(path)
        directory.put(name, None)
        self.finish(fault)

    def fsync_dir(self, path: str) -> None:
        fault = self.ask("fsync_dir", path)
        directory = self._directory(path)
        if fault is not Fault.STOP_HALFWAY:
            directory.durable = dict(directory.names)
            directory.unsynced.clear()
        self.finish(fault)

    def preallocate(self, path: str, size: int) -> None:
        file = self.create(path)
        try:
            file.pwrite(bytes(size), 0)
        except OSError:
            self.unlink(path)
            raise

    def free_bytes(self) -> int:
        return self.room()

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def close(self) -> None:
        self._is_open = False

    def _directory(self, path: str) -> _Directory:
        node: _Inode | _Directory | None = self._root
        for part in path.split("/") if path else ():
            node = node.names.get(part) if isinstance(node, _Directory) else None
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return (self._directory(parent) if parent else self._root), name

    def _inode(self, path: str) -> _Inode:
        directory, name = self._parent(path)
        node = directory.names.get(name)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node


def _sectors(offset: int, data: bytes | None) -> Iterator[tuple[int, bytes | None]]:
    """A write as the device sees it."""
    if data is None:
        yield offset, None
        return
    position = 0
    while position < len(data):
        size = SECTOR - (offset + position) % SECTOR
        yield offset + position, data[position : position + size]
        position += size


def _crash_file(inode: _Inode, random: Random | None, reorder: bool) -> None:
    if random is not None and inode.unsynced:
        keep = random.randint(0, len(inode.unsynced))
        survivors = inode.unsynced[:keep]
        if reorder:
            sectors = (sector for change in inode.unsynced for sector in _sectors(*change))
            survivors = [sector for sector in sectors if random.random() < 0.5]
        elif keep < len(inode.unsynced):
            offset, data = inode.unsynced[keep]
            if data is not None:
                survivors.append((offset, data[: random.randint(0, len(data))]))
        for offset, data in survivors:
            inode.apply(offset, data)
    inode.unsynced.clear()
    inode.data = bytearray(inode.durable)
