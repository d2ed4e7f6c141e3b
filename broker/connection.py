"""One client's connection: bytes to calls, responses to bytes, and how much of either is held.

Requests are handled in the order in which they came. While one of them waits (a long poll, a join),
those behind it wait too, as in Kafka; a few are kept, then the socket is no longer read. A peer that
does not read its answers is not read either. So whoever sends too much waits in its own kernel.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from dualwrite.broker.call import HANG_UP, NO_REPLY, Call
from dualwrite.broker.clock import Now
from dualwrite.broker.listeners import Listener
from dualwrite.broker.receiving import Receiver
from dualwrite.broker.security.gate import principal_of
from dualwrite.broker.security.sasl import SaslConnection
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.codec import decode
from dualwrite.wire.frame import decode_request_header, encode_response_parts
from dualwrite.wire.message import WireError

if TYPE_CHECKING:
    from dualwrite.broker.server import Server

log = logging.getLogger("dualwrite.broker")

QUEUED_FRAMES_MAX: Final = 8
UNANSWERED_MAX: Final = 64
WRITE_BUFFER_BYTES: Final = 1 << 20
JOIN_BELOW: Final = 16 << 10
ANONYMOUS: Final = "User:ANONYMOUS"
FAILED_LOGIN_SECONDS: Final = 0.1
_SASL_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class ClientConnection(asyncio.BufferedProtocol):
    """The server's side of one connection."""

    __slots__ = (
        "_frames",
        "_is_closed",
        "_is_full",
        "_is_reading",
        "_later",
        "_receiver",
        "_server",
        "_transport",
        "_unanswered",
        "authenticated",
        "held",
        "host",
        "incomplete_since_ms",
        "last_active_ms",
        "listener",
        "opened_ms",
        "peer",
        "principal",
        "sasl",
        "spec",
    )

    def __init__(self, server: "Server", spec: Listener) -> None:
        self._server = server
        self.spec = spec
        self.listener = spec.name
        self.principal = ANONYMOUS
        self.host = ""
        self.peer = ""
        self.sasl = None if spec.sasl is None else spec.sasl.connection()
        self.authenticated = self.sasl is None
        self._receiver = Receiver(server.buffers)
        self._frames: deque[bytes | memoryview] = deque()
        self._later: Call[Any] | None = None  # what the requests behind it wait for
        self._unanswered = 0
        self._is_full = False  # the peer does not read
        self._is_reading = True
        self._is_closed = False
        self.held = 0  # bytes that arrived and are not handled yet
        self.last_active_ms = 0
        self.opened_ms = 0
        self.incomplete_since_ms: int | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername") or ("unknown", 0)
        self.host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        self.last_active_ms = self.opened_ms = self._server.clock.now().steady_ms
        if self.spec.ssl is not None and self.sasl is None:
            self.principal = principal_of(transport.get_extra_info("peercert")) or ANONYMOUS
        if self.authenticated:
            self.admit()
        refusal = self._server.opened(self)
        if refusal:
            self.close(refusal)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        self._frames.clear()
        self._receiver.drop()
        self._server.hold(self, -self.held)
        self._server.node.unsent.taken(self)
        self._server.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        now = self._server.clock.now()
        self.last_active_ms = now.steady_ms
        try:
            frames = self._receiver.received(nbytes)
        except WireError as error:
            self.close(str(error))
            return
        self._server.hold(self, nbytes)
        if frames:
            self._frames.extend(frames)
            self.incomplete_since_ms = None
            self.serve(now)
        elif self.incomplete_since_ms is None:
            self.incomplete_since_ms = now.steady_ms
        self.regulate()

    def pause_writing(self) -> None:
        self._is_full = True
        self.regulate()

    def resume_writing(self) -> None:
        self._is_full = False
        self._server.node.unsent.taken(self)
        self._server.resume(self)

    # The server's side

    def admit(self) -> None:
        """Let the peer send frames of full size: it is who it says, or nobody asks."""
        self.authenticated = True
        self._receiver.allow(self._server.frame_bytes_max)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of this connection is under way."""
        return not (self._unanswered or self._frames)

    @property
    def write_buffer_size(self) -> int:
        """Bytes of answers that the peer has not taken yet."""
        return self._transport.get_write_buffer_size()

    def serve(self, now: Now) -> None:
        """Handle what has come, as far as its turn has come."""
        frames = self._frames
        while (
            frames
            and self._later is None
            and not self._is_full
            and not self._is_closed
            and self._unanswered < UNANSWERED_MAX
        ):
            frame = frames.popleft()
            self._server.hold(self, -len(frame) - 4)
            try:
                self._handle(frame, now)
            except WireError as error:
                self.close(str(error))
        if not frames and self.incomplete_since_ms is None and self.held:
            # What is left is the beginning of the next frame.
            self.incomplete_since_ms = now.steady_ms
        self._server.turn_soon()

    def close(self, reason: str | None = None) -> None:
        """Drop the connection; a reason is for the log, in one line."""
        if self._is_closed:
            return
        self._is_closed = True
        if reason is not None:
            log.warning("closing connection from %s: %r", self.peer, reason)
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection with whatever is still to be sent."""
        self._is_closed = True
        self._transport.abort()

    @property
    def socket(self) -> Any:
        return self._transport.get_extra_info("socket")

    def deliver(self, call: Call[Any], response: Any) -> None:
        """Send a response whose time has come; never raises."""
        self._unanswered -= 1
        metrics = self._server.metrics
        if metrics is not None:
            elapsed_ms = self._server.clock.now().steady_ms - call.now.steady_ms
            metrics.answered(call.key, elapsed_ms)
        if call is self._later:
            self._later = None
        if self._is_closed:
            self._server.node.unsent.taken(self)
            return
        if response is HANG_UP:
            self._is_closed = True
            self._transport.close()
            return
        if response is not NO_REPLY:
            self._write(call, response)
        if not self._is_full:
            self._server.node.unsent.taken(self)
        if self._frames:
            self._server.resume(self)

    def _write(self, call: Call[Any], response: Any) -> None:
        try:
            parts = encode_response_parts(response, call.version, call.correlation_id)
            if len(parts) <= 2 or sum(map(len, parts)) < JOIN_BELOW:
                self._transport.write(b"".join(parts))
            else:
                self._transport.writelines(parts)
        except WireError:
            log.exception("no answer to %s v%d", ApiKey(call.key).name, call.version)
            self.close("the answer could not be encoded")
        except (OSError, RuntimeError) as error:
            # uvloop raises on a transport that is closing; the others still get their answers.
            self.close(f"write failed: {error}")

    def _handle(self, frame: bytes | memoryview, now: Now) -> None:
        if self.sasl is not None and self.sasl.expects_raw_token:
            self._take_raw_token(self.sasl, bytes(frame), now)
            return
        header, offset = decode_request_header(frame)
        if self.sasl is not None and not self.sasl.may_send(header.api_key, now):
            raise WireError(f"API {header.api_key} came from a peer that is not authenticated")
        api = self._server.apis.get(header.api_key)
        version = header.api_version
        if api is None or not api.first <= version <= api.last:
            if header.api_key != ApiKey.API_VERSIONS:
                raise WireError(f"API {header.api_key} version {version} is not served")
            # KIP-511: the body of an unknown version must not be read; the answer is one of v0.
            version, request = 0, None
        else:
            request = decode(api.request, frame, version, offset)
        call: Call[Any] = Call(
            header.api_key,
            version,
            header.correlation_id,
            header.client_id or "",
            request,
            self,
            self._server.node.rights,
            now,
        )
        self._unanswered += 1
        is_answered = self._server.handle(call)
        if not is_answered or header.api_key != ApiKey.PRODUCE:
            # Answers to anything but Produce may be large: one is held per connection, not many.
            self._later = call
        if self.sasl is not None and header.api_key in _SASL_APIS:
            self._judge(self.sasl)

    def _take_raw_token(self, sasl: SaslConnection, frame: bytes, now: Now) -> None:
        """A bare SASL message, as SaslHandshake v0 announces it (KIP-43)."""
        answer = sasl.raw_token(frame, now)
        if answer is not None:
            self._transport.write(len(answer).to_bytes(4, "big") + answer)
        self._judge(sasl)

    def _judge(self, sasl: SaslConnection) -> None:
        """Let in who has proved to be somebody; send away who has failed to, after a while."""
        if sasl.is_authenticated and sasl.principal is not None:
            self.principal = sasl.principal
            self.admit()
        elif sasl.is_failed:
            if self._server.metrics is not None:
                self._server.metrics.refused_logins.inc()
            log.warning("authentication failed peer=%s reason=%r", self.peer, sasl.failure)
            # Guessing is slowed down, and the answer has time to arrive.
            asyncio.get_running_loop().call_later(FAILED_LOGIN_SECONDS, self.close)

    def regulate(self) -> None:
        """Read on, or not, as far as what is held allows it."""
        if self._is_closed:
            return
        wanted = not self._is_full and len(self._frames) < QUEUED_FRAMES_MAX
        if not wanted:
            self._server.give_way(self)
        wanted = wanted and self._server.has_room(self)
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
