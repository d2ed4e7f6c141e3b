"""One connection without its socket: bytes in, events out, and the bytes to be written.

Kafka answers the requests of a connection in their order, so a queue is all that is needed to know
which answer belongs to which request; the correlation id only proves it. Whatever a broker sends
that isn't an answer to the oldest request is a `WireError`: the connection has no meaning any more.
"""

from collections import deque
from typing import Any, NamedTuple

from dualwrite.flows.handshake import Handshake
from dualwrite.flows.steps import Closed, Event, Lost, Opened, Reply, Send
from dualwrite.wire.codec import WireError, decode
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frame import (
    API_VERSIONS,
    FrameReader,
    decode_response_header,
    encode_request_parts,
)
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages import response_class
from dualwrite.wire.messages.api_versions import ApiVersionsResponse

Buffer = bytes | memoryview

RESPONSE_BYTES_MAX = 100 * 1024 * 1024
"""A broker that announces more is not a broker."""

_CORRELATION_MASK = 0x7FFFFFFF
_REFUSED_VERSION = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")


class _Pending(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    token: object
    deadline_ms: float


class _HandshakeToken:
    """Marks the requests of the handshake, whose answers are not events."""


_HANDSHAKE = _HandshakeToken()


class Link:
    """The conversation on one connection, from the first byte to the last."""

    __slots__ = (
        "_correlation_id",
        "_frames",
        "_handshake",
        "client_id",
        "is_open",
        "node",
        "pending",
    )

    def __init__(self, node: int, client_id: str, handshake: Handshake) -> None:
        self.node = node
        self.client_id = client_id
        self.is_open = False
        self.pending: deque[_Pending] = deque()
        self._handshake = handshake
        self._frames = FrameReader(RESPONSE_BYTES_MAX)
        self._correlation_id = 0

    def start(self, deadline_ms: float) -> list[Buffer]:
        """The bytes that open the conversation."""
        ask = next(self._handshake)
        return self._encode(ask.request, ask.version, _HANDSHAKE, deadline_ms)

    def send(self, action: Send, now_ms: float) -> list[Buffer]:
        """The bytes of a request."""
        return self._encode(
            action.request, action.version, action.token, now_ms + action.timeout_ms
        )

    def feed(self, data: bytes) -> tuple[list[Event], list[Buffer]]:
        """Take bytes from the broker; returns what they say and what to write in answer."""
        events: list[Event] = []
        answer: list[Buffer] = []
        for frame in self._frames.feed(data):
            pending, response = self._decode(frame)
            if pending.token is not _HANDSHAKE:
                events.append(Reply(pending.token, response))
                continue
            try:
                ask = self._handshake.send(response)
            except StopIteration as finished:
                self.is_open = True
                events.append(Opened(self.node, finished.value))
            else:
                answer += self._encode(ask.request, ask.version, _HANDSHAKE, pending.deadline_ms)
        return events, answer

    def deadline_ms(self) -> float | None:
        """When the oldest request must have been answered."""
        return self.pending[0].deadline_ms if self.pending else None

    def lose(self, error: Exception) -> list[Event]:
        """The connection is gone: what that means for everybody who waits for an answer."""
        self.is_open = False
        tokens = [pending.token for pending in self.pending if pending.token is not _HANDSHAKE]
        self.pending.clear()
        lost: list[Event] = [Lost(token, error) for token in tokens]
        return [*lost, Closed(self.node, error)]

    def _encode(
        self, request: Any, version: int, token: object, deadline_ms: float
    ) -> list[Buffer]:
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        parts = encode_request_parts(request, version, self._correlation_id, self.client_id)
        api_key = schema_of(type(request)).api_key
        self.pending.append(_Pending(self._correlation_id, api_key, version, token, deadline_ms))
        return parts

    def _decode(self, frame: bytes) -> tuple[_Pending, Any]:
        if not self.pending:
            raise WireError("the broker sent an answer that nobody asked for")
        pending = self.pending[0]
        correlation_id, offset = decode_response_header(frame, pending.api_key, pending.version)
        if correlation_id != pending.correlation_id:
            raise WireError(f"answer {correlation_id} came, not {pending.correlation_id}")
        if pending.api_key == API_VERSIONS and frame[offset : offset + 2] == _REFUSED_VERSION:
            # KIP-511: a broker that does not know the version answers in a form of its own.
            response: Any = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        else:
            cls = response_class(pending.api_key)
            response = decode(cls, frame, pending.version, offset)
        self.pending.popleft()
        return pending, response
