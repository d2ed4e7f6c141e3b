"""What healthy clients notice of slow senders and of garbage."""

import contextlib
import math
import random
import selectors
import socket
import struct
import threading
from types import TracebackType

from dualwrite.cli.bench.report import Report, Row
from dualwrite.cli.bench.transactions import ours, timed

SECTION = "beside slow senders and garbage"
SLOW = 1_000
GARBAGE = 2
SEED = 20_261_118


class Noise:
    """Connections that send garbage, or a little of a frame at a time, while the block runs.

    A broker that hangs up makes its own quiet: whoever is hung up on in the middle of a frame comes back
    and is counted. Afterwards `silence` says what was missing at the end, if anything.
    """

    def __init__(self, port: int, slow: int, garbage: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._over = threading.Event()
        # Nobody is answered in the middle of a frame: what can be read there is the end.
        self._ends = selectors.DefaultSelector()
        self._slow = [self._begin_slowly(place) for place in range(slow)]
        self._garbage = garbage
        self._thread = threading.Thread(target=self._make)
        self.sent = 0
        self.came_back = 0
        self.silence = ""

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=10)

    def _begin_slowly(self, place: int) -> socket.socket:
        each = self._connect()
        self._ends.register(each, selectors.EVENT_READ, place)
        with contextlib.suppress(OSError):
            each.sendall(struct.pack(">i", 1000))
        return each

    def __enter__(self) -> "Noise":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._thread.is_alive():
            self.silence = self.silence or "the noise ended early"
        self._over.set()
        self._thread.join()
        if gone := len(self._ends.select(0)):
            self.silence = self.silence or f"{gone:,} slow senders were gone at the end"
        self._ends.close()
        for each in self._slow:
            each.close()

    def _bytes(self) -> bytes:
        kind = self._chance.randrange(3)
        if kind == 0:
            return b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"
        if kind == 1:
            return self._chance.randbytes(self._chance.randint(1, 4096))
        body = self._chance.randbytes(self._chance.randint(8, 200))
        return struct.pack(">i", len(body)) + body

    def _make(self) -> None:
        try:
            while not self._over.wait(0.01):
                self._make_once()
        except OSError as error:
            self.silence = f"the noise ended early: {error}"

    def _make_once(self) -> None:
        for _ in range(self._garbage):
            # The broker may be faster in hanging up.
            with self._connect() as each, contextlib.suppress(OSError):
                each.sendall(self._bytes())
                self.sent += 1
        for each in self._chance.sample(self._slow, min(10, len(self._slow))):
            with contextlib.suppress(OSError):
                each.sendall(b"\0")
        for key, _ in self._ends.select(0):
            self._ends.unregister(key.fileobj)
            self._slow[key.data].close()
            self._slow[key.data] = self._begin_slowly(key.data)
            self.came_back += 1


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    with BrokerProcess() as broker:
        work, close = ours(broker.bootstrap_servers, "bench-noise")
        quiet = timed(work, seconds)
        with Noise(broker.port, SLOW, GARBAGE, SEED) as noise:
            noisy = timed(work, seconds)
        close()
    p50, p99 = (math.nan, math.nan) if noise.silence else (noisy.p50, noisy.p99)
    beside = (
        f"{SLOW:,} slow senders ({noise.came_back:,} came back after the broker had hung up)"
        f" and {noise.sent:,} connections with garbage"
    )
    note = f"{noise.silence}; {beside}" if noise.silence else beside
    report.extend(
        [
            Row(section=SECTION, work="transaction p50, quiet", value=quiet.p50, unit="ms"),
            Row(section=SECTION, work="transaction p50, beside them", value=p50, unit="ms",
                ratio=p50 / quiet.p50, against="transaction p50, quiet", note=note),
            Row(section=SECTION, work="transaction p99, quiet", value=quiet.p99, unit="ms"),
            Row(section=SECTION, work="transaction p99, beside them", value=p99, unit="ms",
                ratio=p99 / quiet.p99, against="transaction p99, quiet", goal="<= 3x", note=noise.silence),
        ]
    )  # fmt: skip
