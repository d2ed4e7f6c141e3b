"""Sockets: accepts connections, hands calls to the node, and flushes once per turn of the loop.

Everything that one pass over the sockets delivered is handled before the flush, so that one fdatasync
serves all of it (group commit without a linger); then the node releases the replies. Where one pass
delivered several requests, one more look is taken first: it costs a few microseconds, and what has
arrived meanwhile needs no flush of its own.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, Any, Final

from dualwrite.broker.call import Call
from dualwrite.broker.connection import ClientConnection
from dualwrite.broker.listeners import Listener
from dualwrite.broker.node import Node
from dualwrite.broker.receiving import Buffers
from dualwrite.broker.running_clock import RunningClock
from dualwrite.broker.storage.errors import DiskFull, StorageFailed
from dualwrite.broker.storage.storage import Group

if TYPE_CHECKING:
    from dualwrite.broker.metrics import Metrics

log = logging.getLogger("dualwrite.broker")

SWEEP_SECONDS: Final = 5.0
FULL_DISK_RETRY_SECONDS: Final = 0.2
IN_LINE_BYTES_MAX: Final = 256 << 10
BACKLOG: Final = 1024
LOGIN_MS_MAX: Final = 10_000


class Server:
    """All connections of one node. Runs on one event loop, which owns the node."""

    def __init__(
        self,
        node: Node,
        listeners: list[Listener],
        clock: RunningClock,
        metrics: "Metrics | None" = None,
    ) -> None:
        self.node = node
        self.listeners = listeners
        self.clock = clock
        self.metrics = metrics
        self.apis = node.apis
        self.frame_bytes_max: int = node.settings["socket.request.max.bytes"]
        self._held_max: int = node.settings["queued.max.request.bytes"]
        self.buffers = Buffers(self._held_max)
        self.failed: asyncio.Future[None]
        self._loop: asyncio.AbstractEventLoop
        self._servers: list[asyncio.Server] = []
        self._connections: set[ClientConnection] = set()
        self._per_host: Counter[str] = Counter()
        self._held = 0
        self._starved: set[ClientConnection] = set()
        self._favoured: ClientConnection | None = None
        self._resumed: dict[ClientConnection, None] = {}
        self._has_turn = False
        self._handled = 0  # calls since the sockets were looked at
        self._has_looked_again = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._writer = ThreadPoolExecutor(1, "dualwrite-journal")
        self._writing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Open the ports; from here on clients are served."""
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        for listener in self.listeners:
            server = await self._loop.create_server(
                self._connect_to(listener),
                listener.host,
                listener.port,
                ssl=listener.ssl,
                backlog=BACKLOG,
                start_serving=False,
            )
            self._servers.append(server)
            listener.port = server.sockets[0].getsockname()[1]
        self.node.endpoints = {spec.name: spec.endpoint for spec in self.listeners}
        for server in self._servers:
            await server.start_serving()
        self._sweep()
        self.turn_soon()

    async def stop(self) -> None:
        """Stop accepting and drop all connections; the node stays open."""
        self._is_closing = True
        for server in self._servers:
            server.close()
        for handle in (self._timer, self._sweeper):
            if handle is not None:
                handle.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if not self.failed.done():
            self._flush()  # whoever was handled gets an answer
        for connection in list(self._connections):
            connection.close()
        for _ in range(20):
            if not self._connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()
        self._writer.shutdown()

    @property
    def connections(self) -> frozenset[ClientConnection]:
        """The connections that are open now."""
        return frozenset(self._connections)

    # What connections ask for

    def handle(self, call: Call[Any]) -> bool:
        """Give a call to the node; False if its answer comes later."""
        before = self.node.storage.position
        self._handled += 1
        try:
            return self.node.handle(call)
        except Exception as error:
            log.exception("a %s from %r failed", type(call.request).__name__, call.client_id)
            self._survive(error, before)
            self.node.hang_up(call)
        return True

    def _survive(self, error: Exception, position: int) -> None:
        """Go on after a mistake only if it has left nothing half done."""
        if isinstance(error, StorageFailed) or self.node.storage.position != position:
            # The journal has something that memory may not show as it would after a restart.
            self._fail(error)

    async def metrics_text(self) -> bytes:
        """What Prometheus scrapes; runs on the loop, which owns the node."""
        from dualwrite.broker.metrics import Metrics

        metrics = self.metrics or Metrics()
        return metrics.render(self.node, len(self._connections), self.clock.now())

    def turn_soon(self) -> None:
        """Flush and release replies once what the sockets have delivered so far is handled."""
        if not self._has_turn:
            self._has_turn = True
            self._loop.call_soon(self._turn)

    def resume(self, connection: ClientConnection) -> None:
        """Serve on, in the next turn, what a connection holds back."""
        self._resumed[connection] = None
        self.turn_soon()

    def hold(self, connection: ClientConnection, change: int) -> None:
        """Account for bytes that arrived and are not handled yet."""
        connection.held += change
        self._held += change
        if change < 0 and self._starved:
            self.give_way(connection)

    def has_room(self, connection: ClientConnection) -> bool:
        """Whether a connection may be read.

        When all together hold too much, one at a time goes on, so that somebody always gets to the
        end of a frame.
        """
        if self._held < self._held_max:
            return True
        if self._favoured is None:
            self._favoured = connection
        if connection is self._favoured:
            return True
        self._starved.add(connection)
        return False

    def give_way(self, connection: ClientConnection) -> None:
        """A connection has got on, or can't go on: let others."""
        if connection is self._favoured:
            self._favoured = None
        if not self._starved or self._favoured is not None:
            return
        if self._held < self._held_max:
            starved, self._starved = self._starved, set()
        else:
            starved = {max(self._starved, key=lambda other: other.held)}
            self._starved -= starved
        for other in starved:
            other.regulate()

    def opened(self, connection: ClientConnection) -> str | None:
        """Count a new connection; gives the reason if there are too many."""
        self._connections.add(connection)
        self._per_host[connection.host] += 1
        tcp = connection.socket
        if tcp is not None:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        settings = self.node.settings
        if self._is_closing:
            return "the broker is stopping"
        if len(self._connections) > settings["max.connections"]:
            return "too many connections"
        is_local = connection.spec.is_loopback or connection.host in ("127.0.0.1", "::1")
        if not is_local and self._per_host[connection.host] > settings["max.connections.per.ip"]:
            return "too many connections from one address"
        return None

    def lost(self, connection: ClientConnection) -> None:
        """Forget a connection that is gone."""
        self._connections.discard(connection)
        self._starved.discard(connection)
        self._resumed.pop(connection, None)
        self.give_way(connection)
        self._per_host[connection.host] -= 1
        if not self._per_host[connection.host]:
            del self._per_host[connection.host]
        self.node.forget(connection)

    # The loop's side

    def _connect_to(self, listener: Listener) -> Callable[[], ClientConnection]:
        return lambda: ClientConnection(self, listener)

    def _turn(self) -> None:
        self._has_turn = False
        if self.failed.done():
            return
        now = self.clock.now()
        resumed, self._resumed = self._resumed, {}
        for connection in resumed:
            connection.serve(now)
            connection.regulate()
        if self._looks_again():
            self.turn_soon()
            return
        self._flush()
        self._arm()

    def _looks_again(self) -> bool:
        """Whether to see, once, what else has arrived before the disk is asked.

        A lone client, who waits for its answer, is not kept waiting, and neither is a large group.
        """
        handled, self._handled = self._handled, 0
        storage = self.node.storage
        self._has_looked_again = (
            not self._has_looked_again
            and handled > 1
            and self._writing is None
            and storage.position > storage.durable
            and storage.pending_bytes <= IN_LINE_BYTES_MAX
        )
        return self._has_looked_again

    def _flush(self) -> None:
        """Sync in line what is small: a hand-off would take longer. Large groups are written on a
        thread, while the next one is being collected."""
        if self._writing is not None:
            return
        storage = self.node.storage
        try:
            if storage.pending_bytes > IN_LINE_BYTES_MAX and not self._is_closing:
                group = storage.next_group()
                assert group is not None
                self._writing = self._loop.run_in_executor(self._writer, storage.write_group, group)
                self._writing.add_done_callback(lambda written: self._written(group, written))
                return
            self.node.flush(self.clock.now())
        except Exception as error:  # noqa: BLE001
            self._not_flushed(error)

    def _written(self, group: Group, written: asyncio.Future[None]) -> None:
        self._writing = None
        now = self.clock.now()
        try:
            written.result()
            self.node.storage.finish_group(group)
            self.node.release(now)
        except Exception as error:  # noqa: BLE001
            self._not_flushed(error)
            return
        if self.node.next_deadline_ms() <= now.steady_ms:
            # Under load the next group waits already, and chores would never have their turn.
            self._tick()
        else:
            self.turn_soon()

    def _not_flushed(self, error: Exception) -> None:
        if isinstance(error, DiskFull):
            # Nothing is lost and nobody gets an answer until there is room again.
            log.error("%s", error)
            self._loop.call_later(FULL_DISK_RETRY_SECONDS, self.turn_soon)
        else:
            # What memory shows may not be what the disk holds: no further answer may rest on it.
            self._fail(error)

    def _arm(self) -> None:
        """Keep one timer for the node's next deadline."""
        if self._writing is not None:
            return
        due_ms = self.node.next_deadline_ms()
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = due_ms - self.clock.now().steady_ms
        self._timer = self._loop.call_later(max(delay_ms, 0) / 1000, self._tick)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.failed.done():
            return
        if self._writing is not None:
            return  # chores write too; they come when the group is written
        before = self.node.storage.position
        try:
            self.node.tick(self.clock.now())
        except Exception as error:
            log.exception("work that comes back failed")
            self._survive(error, before)
        self.turn_soon()

    def _sweep(self) -> None:
        """Close what has been idle, or in the middle of one frame, for too long."""
        self.buffers.trim()
        limit_ms: float = self.node.settings["connections.max.idle.ms"]
        if limit_ms < 0:
            limit_ms = inf
        now_ms = self.clock.now().steady_ms
        for connection in list(self._connections):
            since = connection.incomplete_since_ms
            if since is not None and now_ms - since > limit_ms:
                connection.close("a frame took too long")
            elif not connection.authenticated and now_ms - connection.opened_ms > LOGIN_MS_MAX:
                connection.close("no authentication in time")
            elif connection.is_idle and now_ms - connection.last_active_ms > limit_ms:
                connection.close()
        self._sweeper = self._loop.call_later(
            min(SWEEP_SECONDS, max(limit_ms / 2000, 0.05)), self._sweep
        )

    def _fail(self, error: Exception) -> None:
        """The disk or the state can't be trusted: no further answer leaves this process."""
        log.critical("the broker stops: %s", error, exc_info=not isinstance(error, StorageFailed))
        for connection in list(self._connections):
            connection.abort()
        if not self.failed.done():
            self.failed.set_exception(error)
