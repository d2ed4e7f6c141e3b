"""What goes wrong while clients work, drawn from a seed.

Three hands are at work at the same time, so that their faults overlap: one on the broker, one on the
network, one on the clients. Each hand draws its kinds of faults like cards: every kind once before any
comes again. A fault says how often it hit something; one that hits nothing in time is an error.

The history is told when the first fault comes, and when every kind has struck.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from dualwrite.broker import BrokerProcess
from dualwrite.wire.api_keys import ApiKey
from tests.faults.jumping_clock import JUMPS, Clock
from tests.faults.proxy import Action, Cut, Drop, FaultProxy, Pass, Plan
from tests.faults.random_acts import Act, Acts, act_for
from tests.history.history import Recorder
from tests.history.lives import Client

HANDS = {
    "broker": ((0.5, 2.5), ("kill", "terminate", "pause", "clock")),
    "network": ((0.5, 2.5), ("cut", "silence", "slow")),
    "clients": ((1.0, 3.0), ("client",)),
}
FAULTS = tuple(kind for _, kinds in HANDS.values() for kind in kinds)
DOWN_SECONDS = (0.0, 1.0)
PAUSE_SECONDS = (0.2, 4.0)
CUT_SECONDS, CUT_RATE = (0.2, 1.5), 0.03
CUT_RATES: dict[int, float] = {
    ApiKey.PRODUCE: 0.3,
    ApiKey.END_TXN: 0.3,
    ApiKey.INIT_PRODUCER_ID: 0.1,
}
"""Most frames are reads, which lose nothing; for the others see `CUT_RATE`."""
SILENT_SECONDS = (0.2, 3.0)
SLOW_SECONDS, DELAY_SECONDS = (0.5, 3.0), (0.1, 1.0)
HIT_SECONDS_MAX = 60
FIRST_FAULT = "the first fault"
EVERY_KIND = "every kind had struck"


class Weather(Plan):
    """A plan that is asked about every frame in the same way, and counts what it spoils."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = random.Random(chance.random())  # the proxy has a thread of its own
        self.hits = 0

    def spoil(self, action: Action) -> Action:
        self.hits += 1
        self.happened.set()
        return action


class Cuts(Weather):
    """Now and then a frame arrives in part or not at all, and its connection is reset.

    A request whose answer is cut has been carried out.
    """

    def on_request(self, api_key: int, frame: bytes) -> Action:
        if self.chance.random() < CUT_RATES.get(api_key, CUT_RATE):
            return self.spoil(Cut(self.chance.randrange(len(frame))))
        return Pass()

    on_response = on_request


class Silence(Weather):
    """A partition: nothing arrives in one direction or in both, and no connection says so."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self._loses_requests, self._loses_answers = chance.choice(
            ((True, False), (False, True), (True, True))
        )

    def on_request(self, api_key: int, frame: bytes) -> Action:
        return self.spoil(Drop()) if self._loses_requests else Pass()

    def on_response(self, api_key: int, frame: bytes) -> Action:
        return self.spoil(Drop()) if self._loses_answers else Pass()


class SlowLinks(Weather):
    def on_request(self, api_key: int, frame: bytes) -> Action:
        return self.spoil(Pass(self.chance.uniform(*DELAY_SECONDS)))

    on_response = on_request


class Trouble:
    """Injects faults of the chosen kinds; `drawn` and `hits` count them by kind."""

    def __init__(
        self,
        broker: BrokerProcess,
        proxy: FaultProxy,
        clock: Clock,
        clients: Sequence[Client],
        recorder: Recorder,
        kinds: Sequence[str] = FAULTS,
    ) -> None:
        self._broker = broker
        self._proxy = proxy
        self._clock = clock
        self._clients = clients
        self._recorder = recorder
        self._kinds = kinds
        self._counting = threading.Lock()
        self._faults: dict[str, Callable[[random.Random], int]] = {
            "kill": self._kill,
            "terminate": self._terminate,
            "pause": self._pause,
            "clock": self._jump,
            "cut": self._cut,
            "silence": self._silence,
            "slow": self._slow,
            "client": self._client,
        }
        self.drawn: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def run(
        self, seed: int, seconds: float, others: Acts, until: Callable[[], bool], overtime: float
    ) -> float:
        """Make trouble for so long, beside other acts; then leave everything in order.

        It goes on, but no longer than `overtime`, until every kind has struck and `until` holds. How
        long it has taken.
        """
        self._started = time.monotonic()
        acts = dict(others)
        for hand, (pause, kinds) in HANDS.items():
            if mine := [kind for kind in kinds if kind in self._kinds]:
                acts[hand] = (pause, self._hand(mine))
        try:
            return act_for(
                seconds,
                seed,
                acts,
                until=lambda: not self.missing() and until(),
                overtime=overtime,
            )
        finally:
            self._proxy.plan = Plan()
            self._clock.set(0)

    def _hand(self, kinds: list[str]) -> Act:
        cards: list[str] = []

        def strike(chance: random.Random) -> None:
            if not cards:
                cards.extend(chance.sample(kinds, len(kinds)))
            kind = cards.pop()
            begun = time.monotonic() - self._started
            self._begin(kind)
            hits = self._faults[kind](chance)
            self._end(kind, hits)
            ended = time.monotonic() - self._started
            print(f"{begun:6.1f} to {ended:5.1f} s: {kind}, {hits} hit", flush=True)

        return strike

    def missing(self) -> list[str]:
        """The kinds that have not struck yet."""
        return [kind for kind in self._kinds if not self.hits[kind]]

    def _begin(self, kind: str) -> None:
        with self._counting:
            if not self.drawn:
                self._recorder.phase(FIRST_FAULT)
            self.drawn[kind] += 1

    def _end(self, kind: str, hits: int) -> None:
        with self._counting:
            were_missing = self.missing()
            self.hits[kind] += hits
            if were_missing and not self.missing():
                self._recorder.phase(EVERY_KIND)

    # The broker

    def _kill(self, chance: random.Random) -> int:
        self._broker.kill()
        time.sleep(chance.uniform(*DOWN_SECONDS))
        self._broker.start()
        return 1

    def _terminate(self, chance: random.Random) -> int:
        code = self._broker.terminate()
        assert code == 0, f"the broker ended with {code}"
        time.sleep(chance.uniform(*DOWN_SECONDS))
        self._broker.start()
        return 1

    def _pause(self, chance: random.Random) -> int:
        self._broker.pause()
        try:
            time.sleep(chance.uniform(*PAUSE_SECONDS))
        finally:
            self._broker.go_on()
        return 1

    def _jump(self, chance: random.Random) -> int:
        """It stays at another time until the next jump."""
        self._clock.set(chance.choice([*JUMPS.values()]))
        return 1

    # The network

    def _under(self, weather: Weather, seconds: float) -> int:
        self._proxy.plan = weather
        assert weather.happened.wait(HIT_SECONDS_MAX), f"{type(weather).__name__} hit no frame"
        time.sleep(seconds)
        return weather.hits

    def _cut(self, chance: random.Random) -> int:
        hits = self._proxy.reset_all()
        hits += self._under(Cuts(chance), chance.uniform(*CUT_SECONDS))
        self._proxy.plan = Plan()
        return hits

    def _silence(self, chance: random.Random) -> int:
        hits = self._under(Silence(chance), chance.uniform(*SILENT_SECONDS))
        self._proxy.start_over()
        return hits

    def _slow(self, chance: random.Random) -> int:
        hits = self._under(SlowLinks(chance), chance.uniform(*SLOW_SECONDS))
        self._proxy.plan = Plan()
        return hits

    # The clients

    def _client(self, chance: random.Random) -> int:
        victim = chance.choice(self._clients)
        victim.kill()
        code = victim.process.exitcode
        assert code == -signal.SIGKILL, f"{victim.name} had ended with {code} before"
        victim.start()
        return 1
