"""A TCP proxy that can lose answers: what a failing network does to a COMMIT."""

import contextlib
import socket
import threading


class CuttingProxy:
    """Forwards one server's port.

    After `cut_answers()`, requests still arrive at the server, but the connection is closed as
    soon as the server answers: the work is done and nobody is told.
    """

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._cutting = threading.Event()
        self.cut = threading.Event()
        """Set once an answer was thrown away: by then the server has done the work."""
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut_answers(self) -> None:
        self._cutting.set()

    def close(self) -> None:
        shut(self._listener)  # closing alone would leave `accept` waiting
        for connection in self._open:
            shut(connection)
        for thread in self._threads:
            thread.join(timeout=5)

    def __enter__(self) -> "CuttingProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(self._target)
            self._open += [client, server]
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(
                    target=self._forward, args=(source, sink, is_answer), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if is_answer and data and self._cutting.is_set():
                self.cut.set()
                data = b""
            if not data:
                shut(source)
                shut(sink)
                return
            try:
                sink.sendall(data)
            except OSError:
                shut(source)
                return


def shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
