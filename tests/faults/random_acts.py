"""Several acts at the same time, each again and again at random moments."""

import random
import threading
import time
from collections.abc import Callable, Mapping

Act = Callable[[random.Random], object]
Acts = Mapping[str, tuple[tuple[float, float], Act]]
"""Each with the range of its pauses."""


def act_for(
    seconds: float,
    seed: int,
    acts: Acts,
    *,
    until: Callable[[], bool] = lambda: True,
    overtime: float = 0,
) -> float:
    """Do every act after random pauses from its range, until time is up; how long it has taken.

    What must be done by then (`until`) may take some time more on a slow machine. Pauses and what the
    acts draw depend on the seed and the act's name alone. Whatever an act raises ends all of them and
    is raised.
    """
    over = threading.Event()
    failures: list[BaseException] = []

    def repeat(name: str, pause: tuple[float, float], act: Act) -> None:
        chance = random.Random(f"{seed} {name}")
        try:
            while not over.wait(chance.uniform(*pause)):
                act(chance)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures.append(error)
            over.set()

    threads = [
        threading.Thread(target=repeat, args=(name, pause, act))
        for name, (pause, act) in acts.items()
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    over.wait(seconds)
    while not until() and time.monotonic() - started < seconds + overtime:
        if over.wait(0.2):
            break
    over.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - started
