"""The broker as a running thing: a node, its server and an event loop."""

import asyncio
import logging
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from dualwrite.broker.listeners import Listener, parse_listeners
from dualwrite.broker.node import Node
from dualwrite.broker.running_clock import RunningClock
from dualwrite.broker.security.gate import lock, tighten
from dualwrite.broker.server import Server
from dualwrite.broker.settings import Settings, directory_of
from dualwrite.broker.storage.disk import Disk, RealDisk

if TYPE_CHECKING:
    from dualwrite.broker.metrics import Metrics

log = logging.getLogger("dualwrite.broker")

STOP_SECONDS: Final = 10.0


def open_disk(data_dir: str | Path, settings: Settings) -> tuple[Disk, "Metrics | None"]:
    """The data directory; timed if somebody can ask for the figures (`http.port`)."""
    if settings["http.port"] is None:
        return RealDisk(data_dir), None
    from dualwrite.broker.metrics import Metrics, TimedDisk

    metrics = Metrics()
    return TimedDisk(data_dir, metrics.fsync), metrics


async def serve(
    disk: Disk,
    settings: Settings,
    on_ready: Callable[[Server], None],
    stopped: asyncio.Event,
    metrics: "Metrics | None" = None,
) -> None:
    """Run a broker on the current loop until `stopped`; raises `StorageFailed` if the disk fails.

    The disk is closed at the end, whatever the end is.
    """
    try:
        listeners = parse_listeners(settings)
        tighten(settings, listeners)
        wall_ms = time.time_ns() // 1_000_000
        node = Node.open(disk, settings, wall_ms)
    except BaseException:
        disk.close()
        raise
    try:
        server = Server(node, listeners, RunningClock(node.storage.steady_ms), metrics)
        lock(node, listeners, server.clock.now())
        await _serve_until(server, on_ready, stopped)
    except BaseException:
        node.storage.close()
        raise
    node.close()


async def _serve_until(
    server: Server, on_ready: Callable[[Server], None], stopped: asyncio.Event
) -> None:
    await server.start()
    on_ready(server)
    stopping = asyncio.ensure_future(stopped.wait())
    ends: list[asyncio.Future[Any]] = [stopping, server.failed]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        await server.stop()
    if server.failed.done():
        server.failed.result()
    server.failed.cancel()


def run_in_foreground(
    data_dir: str,
    settings: Settings,
    announce: Callable[[str], None],
    on_ready: Callable[[Server, Callable[[], bytes]], None] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; `announce` gets the line that says where it listens.

    `on_ready` gets the server and a function that any other thread may call for the metrics.
    """
    if os.geteuid() == 0:
        log.warning("running as root; a user of its own is safer")
    _allow_many_files()
    disk, metrics = open_disk(data_dir, settings)

    def ready(server: Server) -> None:
        loop = asyncio.get_running_loop()

        def metrics_text() -> bytes:
            return asyncio.run_coroutine_threadsafe(server.metrics_text(), loop).result(10)

        for spec in server.listeners:
            host = f"[{spec.host}]" if ":" in spec.host else spec.host
            announce(f"listening on {host}:{spec.port}")
        if on_ready is not None:
            on_ready(server, metrics_text)

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        await serve(disk, settings, ready, stopped, metrics)

    uvloop.run(main())


def _allow_many_files() -> None:
    """Take what the system grants: a connection and a segment need a descriptor each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Broker:
    """A broker in this process, on a thread of its own.

        with Broker() as broker:
            Producer({"bootstrap.servers": broker.bootstrap_servers})

    Without `data_dir` the data lives in a temporary directory and dies with the broker. Settings have
    Kafka's names with underscores for dots, or come as a dict in `settings`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        settings: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        values: dict[str, Any] = {"listeners": f"PLAINTEXT://{host}:{port}"}
        values |= settings or {}
        values |= more
        self._settings = Settings.of(values)
        self._data_dir = None if data_dir is None else directory_of(data_dir)
        self._temporary: str | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._is_ready = threading.Event()
        self._failure: BaseException | None = None
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The running server; it belongs to the broker's thread."""
        if self._server is None:
            raise RuntimeError("the broker is not started: use it as `with Broker() as broker:`")
        return self._server

    @property
    def node(self) -> Node:
        """The node; it belongs to the broker's thread."""
        return self.server.node

    @property
    def listeners(self) -> list[Listener]:
        """Where it listens."""
        return self.server.listeners

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect to."""
        host, port = self.listeners[0].endpoint
        return f"{host}:{port}"

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.listeners[0].port

    @property
    def data_dir(self) -> Path:
        """Where the data is."""
        return Path(self._temporary or self._data_dir or "")

    @property
    def failure(self) -> BaseException | None:
        """What stopped the broker, if it was not `stop`."""
        return self._failure

    def start(self) -> "Broker":
        """Start and wait until clients are served."""
        if self._thread is not None and self._thread.is_alive():
            raise RuntimeError("the broker is started already")
        if self._data_dir is None:
            self._temporary = tempfile.mkdtemp(prefix="dualwrite-broker-")
        self._is_ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="dualwrite-broker", daemon=True)
        self._thread.start()
        self._is_ready.wait()
        if self._failure is not None:
            self._thread.join()
            self._remove_temporary()
            raise self._failure
        return self

    def metrics_text(self) -> bytes:
        """What Prometheus would scrape, for tests and for a server of your own."""
        assert self._server is not None
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._server.metrics_text(), self._loop).result(10)

    def stop(self) -> None:
        """Stop cleanly; what was acknowledged is on disk anyway."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if thread.is_alive() and self._loop is not None and self._stopped is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:
                log.debug("the broker has stopped already")
        thread.join(STOP_SECONDS)
        self._remove_temporary()

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            uvloop.run(self._main())
        except BaseException as error:  # noqa: BLE001  told to whoever waits in `start`
            self._failure = error
        finally:
            self._is_ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        disk, metrics = open_disk(self.data_dir, self._settings)
        await serve(disk, self._settings, self._ready, self._stopped, metrics)

    def _ready(self, server: Server) -> None:
        self._server = server
        self._is_ready.set()

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
