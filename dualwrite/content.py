"""What callers may pass as key, value, headers and state, and how it is brought into one form."""

from collections.abc import Mapping, Sequence
from typing import Any

from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.records import Headers

Content = str | bytes | bytearray | memoryview | None
HeadersGiven = Mapping[str, Any] | Sequence[tuple[str, Any]] | None
Row = tuple[bytes | None, bytes | None, Headers | None, int]
"""Key, value, headers, timestamp in milliseconds (0: now)."""


def as_bytes(content: Any) -> bytes:
    """A copy that the caller can no longer change; text becomes UTF-8, as in confluent-kafka."""
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"key and value must be str or bytes, not {type(content).__name__}")


def as_headers(headers: HeadersGiven) -> Headers:
    """Headers as a list of (name, bytes or None); a dict and text values are taken too."""
    if headers is None:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    found: list[tuple[str, bytes | None]] = []
    for name, value in items:
        if not isinstance(name, str):
            raise TypeError(f"header names must be str, not {type(name).__name__}")
        found.append((name, None if value is None else as_bytes(value)))
    return found


def as_state(state: PreparedTxnState | str) -> PreparedTxnState:
    """A prepared state or its text."""
    if isinstance(state, PreparedTxnState):
        return state
    if isinstance(state, str):
        return PreparedTxnState.parse(state)
    raise TypeError(f"not a prepared transaction state: {type(state).__name__}")
