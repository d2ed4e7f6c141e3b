"""`/metrics` alone, with nothing but the standard library: for brokers without the console."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetricsPage:
    """Serves the metrics on loopback until `stop`."""

    def __init__(self, port: int, metrics_text: Callable[[], bytes]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(metrics_text))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dualwrite-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(metrics_text: Callable[[], bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            port = self.connection.getsockname()[1]
            names = (f"127.0.0.1:{port}", f"localhost:{port}")
            # A stranger's page whose name was pointed at this machine must not read it.
            if self.headers.get("Host") not in names:
                self.send_error(403)
            elif self.path != "/metrics":
                self.send_error(404)
            else:
                text = metrics_text()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line."""

    return Handler
