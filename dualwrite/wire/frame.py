"""Frames and headers: what surrounds a message on a connection.

A frame is a size and that many bytes; these are a header and a message. Request headers are v1, or
v2 for flexible versions, with a client id that is never compact; response headers are v0 or v1, and
always v0 for ApiVersions, because its client can't know yet which versions are spoken (KIP-511).
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any

from dualwrite.wire.codec import encode_parts
from dualwrite.wire.message import WireError, schema_of
from dualwrite.wire.messages import is_flexible
from dualwrite.wire.primitives import skip_tags

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7  # its v0 is the one request with header v0
FRAME_BYTES_BEFORE_AUTHENTICATION = 64 * 1024

_SIZE = Struct(">i")
_REQUEST_V0 = Struct(">hhi")
_REQUEST = Struct(">hhih")
_FRAMED_REQUEST = Struct(">ihhih")
_FRAMED_RESPONSE = Struct(">ii")
_FRAMED_FLEXIBLE_RESPONSE = Struct(">iix")


@dataclass(slots=True)
class RequestHeader:
    """Who asks what, in which version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def decode_request_header(data: bytes | memoryview) -> tuple[RequestHeader, int]:
    """The header of a request and the offset of the message behind it.

    An unknown API key is no error here: its header is read as v1, so that the refusal can be logged.
    """
    if len(data) < _REQUEST_V0.size:
        raise WireError(f"a request of {len(data)} bytes has no header")
    if len(data) < _REQUEST.size:
        return _decode_header_v0(data)
    api_key, version, correlation_id, length = _REQUEST.unpack_from(data)
    if api_key == CONTROLLED_SHUTDOWN and version == 0:
        return _decode_header_v0(data)
    offset = _REQUEST.size
    client_id = None
    if length >= 0:
        offset += length
        client_id = _text(bytes(data[_REQUEST.size : offset]))
    elif length != -1:
        raise WireError(f"client id of length {length}")
    if is_flexible(api_key, version):
        offset = _behind_tags(data, offset)
    if offset > len(data):
        raise WireError("request header is cut short")
    return RequestHeader(api_key, version, correlation_id, client_id), offset


def _decode_header_v0(data: bytes | memoryview) -> tuple[RequestHeader, int]:
    api_key, version, correlation_id = _REQUEST_V0.unpack_from(data)
    if api_key != CONTROLLED_SHUTDOWN or version != 0:
        raise WireError("request header is cut short")
    return RequestHeader(api_key, version, correlation_id), _REQUEST_V0.size


def decode_response_header(data: bytes, api_key: int, version: int) -> tuple[int, int]:
    """The correlation id of a response and the offset of the message behind the header."""
    if len(data) < _SIZE.size:
        raise WireError(f"a response of {len(data)} bytes has no header")
    correlation_id: int = _SIZE.unpack_from(data)[0]
    if api_key == API_VERSIONS or not is_flexible(api_key, version):
        return correlation_id, _SIZE.size
    return correlation_id, _behind_tags(data, _SIZE.size)


def encode_request(
    message: Any, version: int, correlation_id: int, client_id: str | None = None
) -> bytes:
    """A whole request frame."""
    return b"".join(encode_request_parts(message, version, correlation_id, client_id))


def encode_request_parts(
    message: Any, version: int, correlation_id: int, client_id: str | None = None
) -> list[bytes | memoryview]:
    """A whole request frame as buffers to send one after the other."""
    schema = schema_of(type(message))
    parts = encode_parts(message, version)
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    if length > 0x7FFF:
        raise WireError(f"client id of length {length}")
    tags = b"\0" if version in schema.flexible else b""
    size = _REQUEST.size + len(name) + len(tags) + sum(map(len, parts))
    opening = _FRAMED_REQUEST.pack(size, schema.api_key, version, correlation_id, length)
    return [opening + name + tags, *parts]


def encode_response(message: Any, version: int, correlation_id: int) -> bytes:
    """A whole response frame."""
    return b"".join(encode_response_parts(message, version, correlation_id))


def encode_response_parts(
    message: Any, version: int, correlation_id: int
) -> list[bytes | memoryview]:
    """A whole response frame as buffers to send one after the other."""
    schema = schema_of(type(message))
    parts = encode_parts(message, version)
    size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
    if version in schema.flexible and schema.api_key != API_VERSIONS:
        opening = _FRAMED_FLEXIBLE_RESPONSE.pack(size + 5, correlation_id)
    else:
        opening = _FRAMED_RESPONSE.pack(size + 4, correlation_id)
    return [opening, *parts]


class FrameReader:
    """Cuts a stream of bytes into frames, without IO.

    `max_bytes` may be raised once the peer is authenticated. After a WireError the stream has no
    meaning any more; close the connection.
    """

    __slots__ = ("_chunks", "_opening", "max_bytes", "missing")

    def __init__(self, max_bytes: int = FRAME_BYTES_BEFORE_AUTHENTICATION) -> None:
        self.max_bytes = max_bytes
        self._opening = b""  # a size of which fewer than four bytes have come
        self._chunks: list[bytes] = []  # of the frame that is not complete yet
        self.missing = 0  # bytes of that frame still to come

    @property
    def buffered(self) -> int:
        """Bytes held for a frame that is not complete yet."""
        return len(self._opening) + sum(map(len, self._chunks))

    def move_to(self, buffer: memoryview) -> int:
        """Leave the frame that is not complete yet to the caller; says how much of it has come."""
        start = 0
        for chunk in self._chunks:
            buffer[start : start + len(chunk)] = chunk
            start += len(chunk)
        self._chunks = []
        self.missing = 0
        return start

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The frames that `data` completes, without their sizes."""
        if type(data) is not bytes:
            data = bytes(data)
        position = 0
        frames: list[bytes] = []
        if self.missing:
            if len(data) < self.missing:
                self._chunks.append(data)
                self.missing -= len(data)
                return frames
            position = self.missing
            self._chunks.append(data[:position])
            frames.append(b"".join(self._chunks))
            self._chunks = []
            self.missing = 0
        elif self._opening:
            data = self._opening + data
            self._opening = b""
        self._cut(data, position, frames)
        return frames

    def _cut(self, data: bytes, position: int, frames: list[bytes]) -> None:
        end = len(data)
        while end - position >= _SIZE.size:
            size: int = _SIZE.unpack_from(data, position)[0]
            if not 0 <= size <= self.max_bytes:
                raise WireError(f"frame of {size} bytes, at most {self.max_bytes} are allowed")
            position += _SIZE.size
            if end - position < size:
                self._chunks = [data[position:]]
                self.missing = size - (end - position)
                return
            frames.append(data[position : position + size])
            position += size
        self._opening = data[position:]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise WireError("client id is not UTF-8") from error


def _behind_tags(data: bytes | memoryview, offset: int) -> int:
    try:
        offset = skip_tags(data, offset) if data[offset] else offset + 1
    except IndexError as error:
        raise WireError("header is cut short") from error
    if offset > len(data):
        raise WireError("header is cut short")
    return offset
