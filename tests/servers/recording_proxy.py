"""A TCP proxy that keeps what went through it: what somebody on the wire can see."""

import contextlib
import socket

from tests.servers.cutting_proxy import CuttingProxy


class RecordingProxy(CuttingProxy):
    """Forwards one server's port; `sent` and `answered` have a buffer for each connection."""

    def __init__(self, target_port: int) -> None:
        self.sent: list[bytearray] = []
        self.answered: list[bytearray] = []
        super().__init__(target_port)

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        seen = bytearray()
        (self.answered if is_answer else self.sent).append(seen)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                seen += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
