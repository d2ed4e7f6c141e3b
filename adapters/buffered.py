"""A local transaction that only collects, and is written in one piece: RocksDB's and ZooKeeper's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from dualwrite.errors import ConfigurationError, InvalidTxnState
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import ResourceName


class BufferedTransaction(ABC):
    """Data, state and kept messages, until `commit` writes them together."""

    reads_from_snapshot = False
    resource_name: ResourceName

    def __init__(self, data: object) -> None:
        """`data` collects what the user writes."""
        self._data = data
        self.remembered: dict[str, tuple[PreparedTxnState, int]] = {}
        self.kept: dict[str, tuple[PreparedTxnState, Sequence[bytes]]] = {}
        self._is_over = False

    @abstractmethod
    def _write(self) -> None: ...

    @property
    def handle(self) -> object:
        return self

    def resource(self, name: ResourceName) -> object:
        if name != self.resource_name:
            raise ConfigurationError(f"this transaction has no {name}; use tx.{self.resource_name}")
        return self._data

    def watch_savepoints(
        self, opened: Callable[[str], None], rolled_back: Callable[[str], None]
    ) -> None:
        return  # there are none

    def flush(self) -> None:
        self.check_open()

    def commit(self) -> None:
        self.check_open()
        self._is_over = True
        self._write()

    def rollback(self) -> None:
        self._is_over = True

    def check_open(self) -> None:
        if self._is_over:
            raise InvalidTxnState("the local transaction has already been ended")
