"""The console on a port of the loopback interface, in the foreground or on a thread."""

import ipaddress
import socket
import threading
from typing import Any, Final

import uvicorn

from dualwrite.errors import ConfigurationError

HEADER_BYTES_MAX: Final = 32 * 1024
REQUESTS_AT_ONCE_MAX: Final = 64
STOP_SECONDS: Final = 5.0


def open_port(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Listen on a loopback address; port 0 picks a free one."""
    if not ipaddress.ip_address(host).is_loopback:
        raise ConfigurationError("the console is served on loopback addresses only")
    listening = socket.create_server((host, port))
    listening.setblocking(False)
    return listening


class ConsoleServer:
    """Serves an ASGI application; owns the socket that it is given."""

    def __init__(self, app: Any, listening: socket.socket) -> None:
        self._app = app
        self._socket = listening
        self._thread: threading.Thread | None = None
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="warning",
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=REQUESTS_AT_ONCE_MAX,
                h11_max_incomplete_event_size=HEADER_BYTES_MAX,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=int(STOP_SECONDS),
            )
        )

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._close()

    def start(self) -> "ConsoleServer":
        """Serve on a thread; connections are accepted from here on."""
        self._thread = threading.Thread(target=self.run, name="dualwrite-console", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS + 1)

    def _close(self) -> None:
        self._socket.close()
        close = getattr(self._app.state, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> "ConsoleServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
