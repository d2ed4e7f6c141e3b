"""What healthy clients notice of slow senders and of garbage."""

import contextlib
import random
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
    """Connections that send garbage, or a little of a frame at a time, while the block runs."""

    def __init__(self, port: int, slow: int, garbage: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._over = threading.Event()
        self._slow = [self._connect() for _ in range(slow)]
        self._garbage = garbage
        self._thread = threading.Thread(target=self._make)
        self.sent = 0

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), timeout=10)

    def __enter__(self) -> "Noise":
        for each in self._slow:
            each.sendall(struct.pack(">i", 1000))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
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
        while not self._over.wait(0.01):
            for _ in range(self._garbage):
                # The broker may be faster in hanging up.
                with self._connect() as each, contextlib.suppress(OSError):
                    each.sendall(self._bytes())
                    self.sent += 1
            for each in self._chance.sample(self._slow, 10):
                each.sendall(b"\0")


def run(report: Report, seconds: float) -> None:
    from dualwrite.broker import BrokerProcess

    with BrokerProcess() as broker:
        work, close = ours(broker.bootstrap_servers, "bench-noise")
        quiet = timed(work, seconds)
        with Noise(broker.port, SLOW, GARBAGE, SEED) as noise:
            noisy = timed(work, seconds)
        close()
    beside = f"{SLOW:,} slow senders and {noise.sent:,} connections with garbage"
    report.extend(
        [
            Row(section=SECTION, work="transaction p50, quiet", value=quiet.p50, unit="ms"),
            Row(section=SECTION, work="transaction p50, beside them", value=noisy.p50, unit="ms",
                ratio=noisy.p50 / quiet.p50, against="quiet", note=beside),
            Row(section=SECTION, work="transaction p99, quiet", value=quiet.p99, unit="ms"),
            Row(section=SECTION, work="transaction p99, beside them", value=noisy.p99, unit="ms",
                ratio=noisy.p99 / quiet.p99, against="quiet", goal="<= 3x"),
        ]
    )  # fmt: skip
