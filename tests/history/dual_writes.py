"""One more hand at the workloads: dual writes with SQLite, so that rows are held against records."""

import random
from collections.abc import Callable
from pathlib import Path

from dualwrite.adapters.sql import SqlStore
from tests.bounce import clients
from tests.bounce.clients import Orders, Place
from tests.history.history import Recorder, Send

Draw = Callable[[random.Random, str], list[Send]]


class Drawn(Orders):
    """Dual writes whose records are those of a workload."""

    def __init__(self, place: Place, process: str, seed: int, draw: Draw) -> None:
        super().__init__(place, process, seed)
        self._workload = draw

    def _draw(self, name: str, chance: random.Random) -> list[Send]:
        return self._workload(chance, name)


def place_of(bootstrap: str, history: Path) -> Place:
    url = f"sqlite:///{history.with_name('orders.db')}"
    return Place(bootstrap, url, history, history.with_name("stop"))


def create(place: Place) -> None:
    engine = clients.engine_of(place)
    clients.create_tables(engine)
    engine.dispose()


def write(place: Place, process: str, seed: int, draw: Draw) -> None:
    """Dual writes until it is killed."""
    clients.write_all(place, Drawn(place, process, seed, draw))


def finish(place: Place, recorder: Recorder) -> int:
    """Recover what the last writer left and record which rows are there; how many."""
    engine = clients.engine_of(place)
    with clients.writer_of(place, SqlStore(engine)):
        pass  # opening recovers
    names = clients.rows_of(engine)
    engine.dispose()
    recorder.write("rows", txns=names)
    return len(names)
