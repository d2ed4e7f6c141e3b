"""What lies between a process and its servers: requests and answers are late, or lost."""

import functools
from contextvars import ContextVar
from dataclasses import dataclass

from dualwrite.admin import TransactionDescription
from dualwrite.broker.transactions.decision import Decision
from dualwrite.prepared import PreparedTxnState
from dualwrite.store import Claim, StoreRow
from tests.interleavings.virtual import Process, now, sleep

IS_MAIN_THREAD: ContextVar[bool] = ContextVar("is_main_thread", default=False)
"""Whether Ctrl-C strikes here."""


@dataclass(frozen=True)
class Rates:
    """How often things go wrong in one history; many are 0, so that histories differ in kind."""

    lost: float
    slow: float
    interrupted: float
    commit_lost: float
    commit_refused: float

    @classmethod
    def drawn(cls, random):
        lost, commit_lost, refused = (random.choice((0, 0, 0.02, 0.1, 0.3)) for _ in range(3))
        return cls(
            lost / 5,
            random.choice((0, 0.01, 0.05)),
            random.choice((0, 0, 0.01)),
            commit_lost,
            refused,
        )


CALM = Rates(0, 0, 0, 0, 0)


class Network:
    def __init__(self, random, rates):
        self.random, self.rates = random, rates
        self.trace = []
        self._servers = Process("servers")

    def note(self, text):
        self.trace.append(f"{now():9.3f} {Process.current.get()} {text}")

    def chance(self, rate):
        return rate > 0 and self.random.random() < rate

    def request(self, error):
        """On the way there: `error()` is raised if it never arrives."""
        self._travel(error)

    def answer(self, error):
        """On the way back: `error()` is raised if it was done, and the answer is lost."""
        self._travel(error)

    def _travel(self, error):
        process = Process.current.get()
        process.stand_still()
        sleep(self.delay())
        process.stand_still()
        if IS_MAIN_THREAD.get() and self.chance(self.rates.interrupted):
            raise KeyboardInterrupt
        if now() < process.cut_off_until or self.chance(self.rates.lost):
            raise error()

    def delay(self):
        if self.chance(self.rates.slow):
            return self.random.uniform(0.2, 4.0)
        return self.random.choice((0.001, 0.001, 0.001, 0.002, 0.01))

    def later(self, seconds, work):
        """A server does something by itself, whoever has died meanwhile."""

        def wait_and_work():
            sleep(seconds)
            work()

        self._servers.start(wait_and_work)


def exchange(error):
    """Make a method of a server a call over the network; `error()` is what a loss looks like."""

    def over_the_network(method):
        @functools.wraps(method)
        def called(self, *args, **kwargs):
            self.network.request(error)
            try:
                result = method(self, *args, **kwargs)
            except Exception as refusal:
                self.network.note(f"{_told(method, args)} raises {refusal!r}")
                raise
            self.network.note(f"{_told(method, args)} gives {_brief(result)}")
            self.network.answer(error)
            return result

        return called

    return over_the_network


def _told(method, args):
    return f"{method.__name__}({', '.join(map(_brief, args))})"


def _brief(value):
    """What one needs of an argument or a result to follow a history."""
    match value:
        case list():
            return f"[{', '.join(map(_brief, value))}]"
        case Claim():
            return f"state {value.state} fence {value.fence}"
        case StoreRow():
            return f"{value.transactional_id} {value.state} fence {value.fence} {value.lease.value}"
        case Decision():
            return f"{tuple(value.producer)}, ongoing {tuple(value.ongoing)}"
        case TransactionDescription():
            return f"{value.state} {value.pair}, last {value.last_finished}"
        case PreparedTxnState() | str():
            return str(value).rpartition("/")[0][-8:] or str(value)
        case _:
            return repr(value)
