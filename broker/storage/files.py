"""Open files, at most so many at a time, the longest unused closed first."""

from collections import OrderedDict

from dualwrite.broker.storage.disk import Disk, File, sync, sync_names


class FileCache:
    """Files by path. A file got here is used at once and not kept.

    `new_names` holds the directories that got a file or a directory since they were last synced.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = max(1, limit)
        self._files: OrderedDict[str, File] = OrderedDict()
        self.new_names: dict[str, None] = {}

    def open(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            return self._keep(path, self._disk.open(path))
        self._files.move_to_end(path)
        return file

    def create(self, path: str) -> File:
        self.forget(path)
        directory, _, _ = path.rpartition("/")
        if not self._disk.exists(directory):
            self._disk.mkdir(directory)
            self.new_names[directory.rpartition("/")[0]] = None
        self.new_names[directory] = None
        return self._keep(path, self._disk.create(path))

    def size(self, path: str) -> int:
        return self.open(path).size()

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def write(self, path: str, content: bytes) -> None:
        """Make a whole file of these bytes and sync it; its name is synced by `sync_names`."""
        file = self.create(path)
        file.pwrite(content, 0)
        sync(file, path)
        self.forget(path)

    def sync(self, path: str) -> None:
        sync(self.open(path), path)

    def sync_names(self) -> None:
        """Make all new names durable, those of directories too."""
        while self.new_names:
            self.sync_a_name()

    def sync_a_name(self) -> None:
        """The same for one directory."""
        directory, _ = self.new_names.popitem()
        if self._disk.exists(directory):
            sync_names(self._disk, directory)

    def unlink(self, path: str) -> None:
        self.forget(path)
        if self._disk.exists(path):
            self._disk.unlink(path)

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _keep(self, path: str, file: File) -> File:
        self._files[path] = file
        if len(self._files) > self._limit:
            _, oldest = self._files.popitem(last=False)
            oldest.close()
        return file
