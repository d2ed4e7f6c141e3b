"""The blocking driver: runs flows on non-blocking sockets in the caller's thread.

There is no thread of its own: a small transaction costs two round trips and no hand-off. While the
caller computes, the kernel sends and receives; answers are read at the next call. Callers hold one
lock per producer, so no method here is called by two threads at once.
"""

import contextlib
import os
import selectors
import socket
import ssl
import time
from collections import deque
from itertools import islice
from typing import Any, TypeVar

from dualwrite.addresses import FAMILIES, Target, new_socket, patience_ms, targets_of
from dualwrite.config import ClientConfig
from dualwrite.flows.cluster import Cluster
from dualwrite.flows.link import Buffer, Link
from dualwrite.flows.steps import (
    AT_ONCE,
    Action,
    Address,
    Closed,
    Connect,
    Disconnect,
    Event,
    Flow,
    Lost,
    Send,
    Step,
    Woken,
)
from dualwrite.login import new_handshake
from dualwrite.tls import refusal, tls_context

T = TypeVar("T")
_READ_BYTES = 256 * 1024
_SCATTER_MAX = 64  # far below every system's limit on buffers per call

_READ = selectors.EVENT_READ
_READ_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class _Wire:
    """A socket with its link, and what could not be written yet."""

    __slots__ = (
        "connect_deadline_ms",
        "host",
        "is_connected",
        "is_writing",
        "link",
        "others",
        "outbox",
        "sock",
    )

    def __init__(self, link: Link, sock: socket.socket, host: str, others: list[Target]) -> None:
        self.link = link
        self.sock = sock
        self.host = host
        self.others = others  # further addresses of the same name
        self.outbox: deque[memoryview] = deque()
        self.is_connected = False
        self.is_writing = True  # a connection that is being made shows it by being writable
        self.connect_deadline_ms = 0.0


class BlockingDriver:
    """Connections to the nodes of one cluster, and the loop that runs flows over them."""

    def __init__(self, config: ClientConfig, cluster: Cluster) -> None:
        self._config = config
        self._cluster = cluster
        self._context = tls_context(config)
        self._selector = selectors.DefaultSelector()
        self._wires: dict[int, _Wire] = {}
        self._events: list[Event] = []

    def start(self, flow: Flow[Any]) -> Step | None:
        """Take a flow to where it waits for the first time; None if it never does.

        `run` then takes it to its end, from the step that is returned.
        """
        self._cluster.now_ms = now_ms = monotonic_ms()
        try:
            step = next(flow)
        except StopIteration:
            return None
        for action in step.actions:
            self._act(action, now_ms)
        return Step([], step.until_ms)

    def run(self, flow: Flow[T], timeout_ms: float, context: str, reached: Step | None = None) -> T:
        """Run a flow to its end; `KafkaTimeout` when the time is over."""
        now_ms = monotonic_ms()
        deadline_ms = now_ms + timeout_ms
        self._cluster.now_ms = now_ms
        try:
            step = next(flow) if reached is None else reached
            while True:
                for action in step.actions:
                    self._act(action, now_ms)
                if step.until_ms > AT_ONCE:
                    self._wait(min(step.until_ms, deadline_ms))
                now_ms = monotonic_ms()
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

    def close(self) -> None:
        for wire in self._wires.values():
            self._discard(wire)
        self._wires.clear()
        self._selector.close()

    def abandon(self) -> None:
        """Close every connection: an interrupt may have taken bytes with it."""
        self._events = []
        for wire in list(self._wires.values()):
            self._discard(wire)
        self._wires.clear()
        self._cluster.forget_links(ConnectionAbortedError("the call was interrupted"))

    # Actions

    def _act(self, action: Action, now_ms: float) -> None:
        match action:
            case Send(node=node):
                wire = self._wires.get(node)
                if wire is None or not wire.link.is_open:
                    self._events.append(Lost(action.token, ConnectionError("not connected")))
                    return
                parts = wire.link.send(action, now_ms)
                self._write(wire, parts)
            case Connect(node, address):
                self._connect(node, address)
            case Disconnect(node):
                self._lose(node, ConnectionAbortedError("closed by us"))

    def _connect(self, node: int, address: Address) -> None:
        old = self._wires.pop(node, None)
        if old is not None:
            self._discard(old)
        host, port = address
        try:
            found = socket.getaddrinfo(
                host, port, FAMILIES[self._config.address_family], socket.SOCK_STREAM
            )
        except OSError as error:
            self._events.append(Closed(node, error))
            return
        self._try_addresses(node, host, targets_of(found))

    def _try_addresses(self, node: int, host: str, targets: list[Target]) -> None:
        """Begin to connect to the first address that does not fail at once."""
        error: OSError = OSError(f"no address for {host!r}")
        while targets:
            (family, target), targets = targets[0], targets[1:]
            sock = new_socket(self._config, family)
            try:
                with contextlib.suppress(BlockingIOError):
                    sock.connect(target)
            except OSError as failed:
                sock.close()
                error = failed
                continue
            self._watch_connect(node, _Wire(self._new_link(node), sock, host, targets))
            return
        self._events.append(Closed(node, error))

    def _new_link(self, node: int) -> Link:
        return Link(node, self._config.client_id, new_handshake(self._config))

    def _watch_connect(self, node: int, wire: _Wire) -> None:
        wire.connect_deadline_ms = monotonic_ms() + patience_ms(self._config, wire.others)
        self._wires[node] = wire
        self._selector.register(wire.sock, _READ_WRITE, wire)

    # Waiting

    def _wait(self, until_ms: float) -> None:
        """Wait for events, at most until the time or until something else is overdue."""
        limit_ms = until_ms
        if self._events:
            limit_ms = 0
        else:
            for wire in self._wires.values():
                limit_ms = min(limit_ms, self._deadline(wire))
        now_ms = monotonic_ms()
        timeout = max(0.0, limit_ms - now_ms) / 1000 if limit_ms < float("inf") else None
        if not self._wires:
            if timeout:
                time.sleep(timeout)
            return
        ready = self._selector.select(timeout)
        for key, mask in ready:
            self._ready(key.data, mask)
        if not (ready and timeout):
            self._check_deadlines()

    def _deadline(self, wire: _Wire) -> float:
        oldest = wire.link.deadline_ms()
        if not wire.link.is_open:
            return wire.connect_deadline_ms
        return float("inf") if oldest is None else oldest

    def _check_deadlines(self) -> None:
        now_ms = monotonic_ms()
        for node, wire in list(self._wires.items()):
            if self._deadline(wire) > now_ms:
                continue
            if wire.is_connected:
                what = "no answer in time" if wire.link.is_open else "no connection in time"
                self._lose(node, TimeoutError(what))
            else:
                self._connect_failed(wire, TimeoutError("no connection in time"))

    def _ready(self, wire: _Wire, mask: int) -> None:
        node = wire.link.node
        if self._wires.get(node) is not wire:
            return  # lost while an earlier socket of the same round was served
        try:
            if not wire.is_connected:
                self._finish_connect(wire)
            elif mask & selectors.EVENT_READ:
                self._read(wire)
            if wire.is_connected and wire.outbox and self._wires.get(node) is wire:
                self._flush(wire)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return
        except OSError as error:
            self._connect_failed(wire, error) if not wire.is_connected else self._lose(node, error)
        except Exception as error:  # noqa: BLE001  # a broker's nonsense must not stop the others
            self._lose(node, error)

    def _connect_failed(self, wire: _Wire, error: OSError) -> None:
        node = wire.link.node
        if wire.others and not isinstance(error, ssl.SSLError):
            self._discard(wire)
            del self._wires[node]
            self._try_addresses(node, wire.host, wire.others)
        else:
            self._lose(node, refusal(error))

    def _finish_connect(self, wire: _Wire) -> None:
        code = wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, f"cannot connect: {os.strerror(code)}")
        wire.sock.getpeername()  # not connected yet: an OSError without TLS noise
        if self._context is not None:
            self._handshake_tls(self._tls_of(wire, self._context), wire)
        wire.is_connected = True
        self._give_time(wire)
        self._write(wire, wire.link.start(wire.connect_deadline_ms))

    def _give_time(self, wire: _Wire) -> None:
        """Once an address answers, nobody waits for the others of its name."""
        if wire.others:
            wire.connect_deadline_ms = monotonic_ms() + self._config.connect_timeout_ms

    def _tls_of(self, wire: _Wire, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The wire's socket with TLS, which a socket can get only once it is connected."""
        if not isinstance(wire.sock, ssl.SSLSocket):
            self._selector.unregister(wire.sock)
            wire.sock = context.wrap_socket(
                wire.sock, server_hostname=wire.host, do_handshake_on_connect=False
            )
            self._give_time(wire)
            wire.is_writing = True
            self._selector.register(wire.sock, _READ_WRITE, wire)
        assert isinstance(wire.sock, ssl.SSLSocket)
        return wire.sock

    def _handshake_tls(self, sock: ssl.SSLSocket, wire: _Wire) -> None:
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(wire, is_writing=False)
            raise
        except ssl.SSLWantWriteError:
            self._watch(wire, is_writing=True)
            raise

    def _read(self, wire: _Wire) -> None:
        while True:
            data = wire.sock.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            events, answer = wire.link.feed(data)
            self._events += events
            if answer:
                self._write(wire, answer)
            if not (isinstance(wire.sock, ssl.SSLSocket) and wire.sock.pending()):
                return

    # Writing

    def _write(self, wire: _Wire, parts: list[Buffer]) -> None:
        is_idle = not wire.outbox
        wire.outbox.extend(map(memoryview, parts))
        if not is_idle:
            return
        try:
            self._flush(wire)
        except OSError as error:
            self._lose(wire.link.node, error)

    def _flush(self, wire: _Wire) -> None:
        outbox = wire.outbox
        try:
            while outbox:
                if isinstance(wire.sock, ssl.SSLSocket):
                    sent = wire.sock.send(outbox[0])
                else:
                    sent = wire.sock.sendmsg(list(islice(outbox, _SCATTER_MAX)))
                while outbox and sent >= len(outbox[0]):
                    sent -= len(outbox.popleft())
                if sent:
                    outbox[0] = outbox[0][sent:]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        self._watch(wire, is_writing=bool(outbox))

    def _watch(self, wire: _Wire, *, is_writing: bool) -> None:
        if wire.is_writing is not is_writing:
            wire.is_writing = is_writing
            self._selector.modify(wire.sock, _READ_WRITE if is_writing else _READ, wire)

    def _lose(self, node: int, error: Exception) -> None:
        wire = self._wires.pop(node, None)
        if wire is None:
            return
        self._discard(wire)
        self._events += wire.link.lose(error)

    def _discard(self, wire: _Wire) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(wire.sock)
        wire.sock.close()
