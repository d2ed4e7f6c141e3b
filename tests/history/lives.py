"""Clients in processes of their own, which are killed and begin again under a new name."""

import faulthandler
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.bounce.clients", "tests.history.clients"])


class Client:
    """One client over all its lives. What it does in one is `role(place, process, *args)`."""

    def __init__(self, role: Callable[..., None], name: str, place: Any, *args: Any) -> None:
        self.name = name
        self._role = role
        self._place = place
        self._args = args
        self._lives = 0
        self.start()

    def start(self) -> None:
        self._lives += 1
        process = f"{self.name}.{self._lives}"
        self.process = _context.Process(
            target=_live, args=(self._role, self._place, process, *self._args), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def show_stacks(self) -> None:
        """Let the process say on stderr where it stands."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGUSR1)
        else:
            print(f"{self.name} has ended with {self.process.exitcode}")


def _live(role: Callable[..., None], *args: Any) -> None:
    faulthandler.register(signal.SIGUSR1)
    role(*args)
