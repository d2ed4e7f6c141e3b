"""What callers may pass as key, value, headers and state, and how it is brought into one form."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.records import Headers

ANY_PARTITION = -1
_PARTITION_MAX = 2**31 - 1
_TIMESTAMP_MAX = 2**62 - 1

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
    try:
        pairs = [
            (name, value)
            for name, value in (headers.items() if isinstance(headers, Mapping) else headers)
        ]
    except (TypeError, ValueError):
        raise TypeError(f"headers must be a dict or (name, value) pairs: {headers!r}") from None
    found: list[tuple[str, bytes | None]] = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"header names must be str, not {type(name).__name__}")
        found.append((name, None if value is None else as_bytes(value)))
    return found


def as_partition(partition: Any) -> int:
    """A partition's number; -1 leaves the choice to the partitioner."""
    number = _whole("partition", partition)
    if not ANY_PARTITION <= number <= _PARTITION_MAX:
        raise ValueError(f"partition must be -1 or a partition's number, not {partition!r}")
    return number


def as_timestamp(timestamp: Any) -> int:
    """Milliseconds since 1970; 0 (or None) is now."""
    if timestamp is None:
        return 0
    number = _whole("timestamp", timestamp)
    if not 0 <= number <= _TIMESTAMP_MAX:
        raise ValueError(f"timestamp must be milliseconds since 1970, not {timestamp!r}")
    return number


def as_callback(on_delivery: Any) -> Any:
    """What is called when a record has arrived, or None."""
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
    return on_delivery


def _whole(name: str, number: Any) -> int:
    try:
        return index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r}") from None


def as_state(state: PreparedTxnState | str) -> PreparedTxnState:
    """A prepared state or its text."""
    if isinstance(state, PreparedTxnState):
        return state
    if isinstance(state, str):
        return PreparedTxnState.parse(state)
    raise TypeError(f"not a prepared transaction state: {type(state).__name__}")
