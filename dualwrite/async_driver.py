"""The asyncio driver: runs the same flows on transports of the running event loop.

A flow is changed only between two awaits, so a task that is cancelled leaves it whole; answers that
come meanwhile wait for the next flow.
"""

import asyncio
import socket
import time
from typing import TypeVar, cast

from dualwrite.addresses import FAMILIES, new_socket, patience_ms, targets_of
from dualwrite.config import ClientConfig
from dualwrite.flows.cluster import Cluster
from dualwrite.flows.link import Link
from dualwrite.flows.steps import (
    FOREVER,
    Action,
    Address,
    Closed,
    Connect,
    Disconnect,
    Event,
    Flow,
    Lost,
    Send,
    Woken,
)
from dualwrite.login import new_handshake
from dualwrite.tls import refusal, tls_context

T = TypeVar("T")

_CLOSE_SECONDS = 1.0


def _now_ms() -> float:
    return time.monotonic() * 1000


class _Wire(asyncio.Protocol):
    """One connection: a transport with its link."""

    def __init__(self, driver: "AsyncDriver", link: Link, deadline_ms: float) -> None:
        self.link = link
        self.deadline_ms = deadline_ms
        self.transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver = driver
        self._failure: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self._driver.made(self)
        self.transport.writelines(self.link.start(self.deadline_ms))

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        try:
            events, answer = self.link.feed(data)
        except Exception as error:  # noqa: BLE001  # a broker's nonsense must not stop the others
            self.fail(error)
            return
        if answer and self.transport is not None:
            self.transport.writelines(answer)
        if events:
            self._driver.happened(events)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        reason = self._failure or error or ConnectionResetError("the broker closed the connection")
        self._driver.lost(self, reason)

    def fail(self, error: Exception) -> None:
        """Close without ceremony; `connection_lost` follows."""
        self._failure = error
        if self.transport is not None:
            self.transport.abort()

    def overdue_ms(self) -> float:
        if not self.link.is_open:
            return self.deadline_ms
        oldest = self.link.deadline_ms()
        return FOREVER if oldest is None else oldest


class AsyncDriver:
    """Connections to the nodes of one cluster, and the loop that runs flows over them."""

    def __init__(self, config: ClientConfig, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster
        self._context = tls_context(config)
        self._wires: dict[int, _Wire] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._events: list[Event] = []
        self._waker: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = FOREVER
        self.lock = asyncio.Lock()

    async def run(self, flow: Flow[T], timeout_ms: float, context: str) -> T:
        """Run a flow to its end; `KafkaTimeout` when the time is over. One flow runs at a time."""
        async with self.lock:
            return await self.run_held(flow, timeout_ms, context)

    async def run_held(self, flow: Flow[T], timeout_ms: float, context: str) -> T:
        """As `run`, for a caller that holds the lock already."""
        now_ms = _now_ms()
        deadline_ms = now_ms + timeout_ms
        self._cluster.now_ms = now_ms
        try:
            step = next(flow)
            while True:
                for action in step.actions:
                    self._act(action, now_ms)
                await self._wait(min(step.until_ms, deadline_ms))
                now_ms = _now_ms()
                events, self._events = self._events, []
                if not events and now_ms >= deadline_ms and now_ms < step.until_ms:
                    self._cluster.now_ms = now_ms
                    step = flow.throw(self._cluster.timeout(context))
                else:
                    step = flow.send(Woken(now_ms, events))
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            flow.close()

    async def close(self) -> None:
        """Close every connection and wait until the loop has let go of them."""
        if self._alarm is not None:
            self._alarm.cancel()
        opening, wires = list(self._opening.values()), list(self._wires.values())
        for task in opening:
            task.cancel()
        for wire in wires:
            wire.fail(ConnectionAbortedError("closed by us"))
        waiting = [*opening, *(wire.closed for wire in wires)]
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
        self._wires.clear()

    # Actions

    def _act(self, action: Action, now_ms: float) -> None:
        match action:
            case Send(node=node):
                wire = self._wires.get(node)
                if wire is None or wire.transport is None or not wire.link.is_open:
                    self._events.append(Lost(action.token, ConnectionError("not connected")))
                    return
                wire.transport.writelines(wire.link.send(action, now_ms))
            case Connect(node, address):
                task = asyncio.get_running_loop().create_task(self._open(node, address))
                self._opening[node] = task
                task.add_done_callback(lambda _: self._opening.pop(node, None))
            case Disconnect(node):
                if node in self._wires:
                    self._wires[node].fail(ConnectionAbortedError("closed by us"))

    async def _open(self, node: int, address: Address) -> None:
        link = Link(node, self._config.client_id, new_handshake(self._config))
        seconds = self._config.connect_timeout_ms / 1000
        wire = _Wire(self, link, _now_ms() + self._config.connect_timeout_ms)
        host, port = address
        try:
            sock = await self._connected(host, port)
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_connection(
                    lambda: wire,
                    sock=sock,
                    ssl=self._context,
                    server_hostname=host if self._context else None,
                )
        except (OSError, TimeoutError) as error:
            self.happened([Closed(node, refusal(error))])

    async def _connected(self, host: str, port: int) -> socket.socket:
        """A connection to the first address behind the name that takes one."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host, port, family=FAMILIES[self._config.address_family], type=socket.SOCK_STREAM
        )
        targets = targets_of(found)
        while True:
            (family, target), targets = targets[0], targets[1:]
            sock = new_socket(self._config, family)
            try:
                async with asyncio.timeout(patience_ms(self._config, targets) / 1000):
                    await loop.sock_connect(sock, target)
                return sock
            except BaseException as error:
                sock.close()
                if not (targets and isinstance(error, OSError)):
                    raise

    # Events

    def made(self, wire: _Wire) -> None:
        self._wires[wire.link.node] = wire

    def happened(self, events: list[Event]) -> None:
        self._events += events
        self._wake()

    def lost(self, wire: _Wire, error: Exception) -> None:
        if self._wires.get(wire.link.node) is wire:
            del self._wires[wire.link.node]
        self.happened(wire.link.lose(error))

    async def _wait(self, until_ms: float) -> None:
        """Wait for events, at most until the time or until something else is overdue."""
        if self._events:
            return
        limit_ms = until_ms
        for wire in self._wires.values():
            limit_ms = min(limit_ms, wire.overdue_ms())
        now_ms = _now_ms()
        if limit_ms <= now_ms:
            await asyncio.sleep(0)
        else:
            await self._sleep((limit_ms - now_ms) / 1000)
        if self._events:
            return
        now_ms = _now_ms()
        for wire in list(self._wires.values()):
            if wire.overdue_ms() <= now_ms:
                what = "no answer in time" if wire.link.is_open else "no connection in time"
                wire.fail(TimeoutError(what))

    async def _sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        waker = self._waker = loop.create_future()
        if seconds < FOREVER:
            self._set_alarm(loop, loop.time() + seconds)
        try:
            await waker
        finally:
            self._waker = None

    def _set_alarm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        """Be woken at the time, or earlier: most waits are over long before their limit, and an
        alarm that stays for the next one is cheaper than one for each."""
        if self._alarm_at <= at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm_at = FOREVER
        self._wake()

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)
