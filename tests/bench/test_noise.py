"""The noise beside which healthy clients are measured is there from beginning to end, or it is said."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress

import pytest

from dualwrite.cli.bench import noise
from dualwrite.cli.bench.noise import SEED, Noise
from dualwrite.cli.bench.report import Report
from tests.dualwrite.waiting import wait_until

SLOW = 20
SLOW_BEGINNING = struct.pack(">i", 1000)


class Impatient:
    """A server that hangs up on some who begin slowly: by default on every second of the first forty."""

    def __init__(self, hangs_up=lambda number: number < 2 * SLOW and number % 2 == 0):
        self._hangs_up = hangs_up
        self._server = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.port = self._server.getsockname()[1]
        self.kept = []
        self.hung_up_on = 0
        self._begun = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            begun_slowly = link.recv(4) == SLOW_BEGINNING
            number, self._begun = self._begun, self._begun + begun_slowly
            if begun_slowly and not self._hangs_up(number):
                self.kept.append(link)
                continue
            # With a reset, so that who writes next is told at once.
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
            self.hung_up_on += begun_slowly

    def close(self):
        with suppress(OSError):  # closed already
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for link in self.kept:
            link.close()


@contextmanager
def impatient(*arguments):
    server = Impatient(*arguments)
    try:
        yield server
    finally:
        server.close()


def test_who_is_hung_up_on_comes_back():
    with impatient() as server:
        made = Noise(server.port, SLOW, 1, SEED)
        wait_until(lambda: server.hung_up_on == SLOW / 2)
        with made:
            wait_until(lambda: len(server.kept) == SLOW)
            rounds = made.sent
            wait_until(lambda: made.sent > rounds + 10)

        assert made.silence == ""
        assert made.came_back == server.hung_up_on > 0


def test_noise_that_nobody_takes_any_more_is_told():
    with impatient() as server, Noise(server.port, SLOW, 1, SEED) as made:
        wait_until(lambda: made.sent)
        server.close()
        wait_until(lambda: made.silence)

    assert made.silence.startswith("the noise ended early: ")


def test_noise_that_ends_for_whatever_reason_is_told():
    with impatient() as server, Noise(server.port, SLOW, 1, SEED) as made:
        made._over.set()
        made._thread.join()

    assert made.silence == "the noise ended early"


def test_slow_senders_that_are_gone_at_the_end_are_told():
    class Forgetful(Noise):
        def _make_once(self):
            pass

    with impatient(lambda _: True) as server, Forgetful(server.port, SLOW, 1, SEED) as made:
        wait_until(lambda: server.hung_up_on == SLOW)

    assert made.silence == f"{SLOW} slow senders were gone at the end"


@pytest.mark.slow
@pytest.mark.parametrize("silence", ["", "the noise ended early"])
def test_what_was_measured_in_silence_is_no_figure(monkeypatch, silence):
    class Ending(Noise):
        def __exit__(self, *error):
            super().__exit__(*error)
            assert self.silence == ""
            self.silence = silence

    monkeypatch.setattr(noise, "Noise", Ending)
    report = Report()

    noise.run(report, 0.2)

    beside = [row for row in report.rows if row.against]
    assert [row.work for row in beside] == [
        "transaction p50, beside them",
        "transaction p99, beside them",
    ]
    for row in beside:
        assert (row.value is None, row.ratio is None) == (bool(silence), bool(silence))
        assert row.note.startswith(silence)
    assert "1,000 slow senders (0 came back" in beside[0].note
