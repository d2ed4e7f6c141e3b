"""A TCP proxy between clients and the broker that misbehaves on demand.

It knows Kafka's frames, so a test can say "cut the connection after byte 17 of the next EndTxn" or
"hold the next EndTxn back and deliver it when the next transaction has begun".

    with FaultProxy(("127.0.0.1", port)) as proxy:
        proxy.plan = CutRequest(ApiKey.END_TXN, after_bytes=17)

A plan is asked about every frame of a client (`on_request`) and of the broker (`on_response`) and says
what to do with it. Plans run on the proxy's thread; tests wait for their `happened` event.
"""

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward the frame, slowly if asked: `slice_bytes` at a time after `delay_s`, with a pause after
    each slice as in a network that takes no more.
    """

    delay_s: float = 0
    slice_bytes: int = 0
    pause_s: float = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Forward the first `after_bytes` bytes, then reset both connections."""

    after_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the frame until `FaultProxy.release`; everything behind it goes on."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Swallow the frame. Nothing may follow it, so every frame behind it is to be swallowed, too,
    until `FaultProxy.start_over`.
    """


@dataclass(frozen=True, slots=True)
class Stall:
    """From this frame on the connection is silent in both directions until `FaultProxy.release`, which
    delivers everything that was sent meanwhile, even if the client has gone.
    """


Action = Pass | Cut | Hold | Drop | Stall
PASS = Pass()


class Plan:
    """What to do with frames. The base class forwards everything."""

    def __init__(self) -> None:
        self.happened = threading.Event()

    def on_request(self, api_key: int, frame: bytes) -> Action:
        return PASS

    def on_response(self, api_key: int, frame: bytes) -> Action:
        return PASS


class Once(Plan):
    """Takes one action, the first time that the API is seen in the given direction."""

    def __init__(self, api_key: int, action: Action, *, response: bool = False) -> None:
        super().__init__()
        self._api_key = api_key
        self._action = action
        self._response = response

    def _act(self, api_key: int) -> Action:
        if api_key != self._api_key or self.happened.is_set():
            return PASS
        self.happened.set()
        return self._action

    def on_request(self, api_key: int, frame: bytes) -> Action:
        return PASS if self._response else self._act(api_key)

    def on_response(self, api_key: int, frame: bytes) -> Action:
        return self._act(api_key) if self._response else PASS


class Slow(Plan):
    """Delays and slices every frame in both directions."""

    def __init__(self, delay_s: float, slice_bytes: int = 0, pause_s: float = 0) -> None:
        super().__init__()
        self._action = Pass(delay_s, slice_bytes, pause_s)

    def on_request(self, api_key: int, frame: bytes) -> Action:
        return self._action

    def on_response(self, api_key: int, frame: bytes) -> Action:
        return self._action


@dataclass(slots=True, eq=False)
class _Link:
    """One client connection and its twin to the broker."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    apis: dict[int, int] = field(default_factory=dict)  # correlation id -> API key
    held: int = 0
    nothing_held: asyncio.Event = field(default_factory=asyncio.Event)
    going: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.nothing_held.set()
        self.going.set()

    def hold(self) -> None:
        self.held += 1
        self.nothing_held.clear()

    def let_go(self) -> None:
        self.held -= 1
        if not self.held:
            self.nothing_held.set()

    def reset(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class FaultProxy:
    """Listens on a free port of its own from construction on; `target` may be set later."""

    def __init__(self, target: Address | None = None) -> None:
        self.target = target
        self.plan = Plan()
        self.port = 0
        self._links: set[_Link] = set()
        self._held: list[tuple[_Link, asyncio.StreamWriter, bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._start())

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def release(self) -> int:
        """Deliver what is held back, in order, and end every stall; the number of both."""
        return int(self._call(self._release()))

    def reset_all(self) -> int:
        """Reset every open connection; the number of them."""
        return int(self._call(self._reset_all()))

    def start_over(self) -> None:
        """Reset every open connection and forward everything from now on."""
        self._call(self._reset_all(Plan()))

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._reset_all()
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _reset_all(self, plan: Plan | None = None) -> int:
        self.plan = plan or self.plan
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    async def _release(self) -> int:
        held, self._held = self._held, []
        for link, writer, frame in held:
            if not writer.is_closing():
                writer.write(frame)
                await writer.drain()
            link.let_go()
        stalled = [link for link in self._links if not link.going.is_set()]
        for link in stalled:
            link.going.set()
        for link in stalled:
            await link.nothing_held.wait()
        return len(held) + len(stalled)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.target is None:
            writer.transport.abort()
            return
        try:
            upstream, server = await asyncio.open_connection(*self.target)
        except (OSError, asyncio.CancelledError):  # the latter when the proxy is stopped
            writer.transport.abort()
            return
        link = _Link(writer, server)
        self._links.add(link)
        up = self._pump(link, reader, server, self._judge_request)
        down = self._pump(link, upstream, writer, self._judge_response)
        pumps = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            # A held request must be able to arrive after its client has gone.
            await link.nothing_held.wait()
        finally:
            for pump in pumps:
                pump.cancel()
            self._links.discard(link)
            link.reset()

    def _judge_request(self, link: _Link, frame: bytes) -> Action:
        api_key, _, correlation_id = _HEAD.unpack_from(frame, _SIZE.size)
        link.apis[correlation_id] = api_key
        return self.plan.on_request(api_key, frame)

    def _judge_response(self, link: _Link, frame: bytes) -> Action:
        (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
        return self.plan.on_response(link.apis.pop(correlation_id, -1), frame)

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        judge: Callable[[_Link, bytes], Action],
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(_SIZE.size)
                frame = head + await reader.readexactly(_SIZE.unpack(head)[0])
                await link.going.wait()
                action = judge(link, frame)
                match action:
                    case Stall():
                        link.hold()
                        link.going.clear()
                        await link.going.wait()
                        writer.write(frame)
                        await writer.drain()
                        link.let_go()
                    case Hold():
                        link.hold()
                        self._held.append((link, writer, frame))
                    case Drop():
                        pass
                    case Cut(after_bytes):
                        writer.write(frame[:after_bytes])
                        await writer.drain()
                        return
                    case Pass():
                        await self._forward(writer, frame, action)
        except (OSError, asyncio.IncompleteReadError):
            return

    async def _forward(self, writer: asyncio.StreamWriter, frame: bytes, how: Pass) -> None:
        if how.delay_s:
            await asyncio.sleep(how.delay_s)
        step = how.slice_bytes or len(frame)
        for start in range(0, len(frame), step):
            writer.write(frame[start : start + step])
            await writer.drain()
            if how.pause_s:
                await asyncio.sleep(how.pause_s)
