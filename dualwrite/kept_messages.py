"""Buffered messages as bytes, for the copy that resume mode keeps in the database.

Per message: topic, partition, timestamp, key, value, number of headers, then name and value of
each; texts and contents are length-prefixed, -1 stands for null.
"""

import struct
from collections.abc import Iterable

from dualwrite.transaction import ConsumedOffsets, Message

_HEAD = struct.Struct(">iq")
_COUNT = struct.Struct(">i")


def encode(message: Message) -> bytes:
    parts = [
        _content(message.topic.encode()),
        _HEAD.pack(message.partition, message.timestamp),
        _content(message.key),
        _content(message.value),
        _COUNT.pack(len(message.headers)),
    ]
    for name, value in message.headers:
        parts += (_content(name.encode()), _content(value))
    return b"".join(parts)


def decode(data: bytes) -> Message:
    reader = _Reader(data)
    topic = reader.text()
    partition, timestamp = reader.unpack(_HEAD)
    key, value = reader.content(), reader.content()
    (count,) = reader.unpack(_COUNT)
    headers = tuple((reader.text(), reader.content()) for _ in range(count))
    if reader.position != len(data):
        raise ValueError("a kept message has bytes behind its end")
    return Message(topic, value, key, partition, None, timestamp, headers)


def encode_all(entries: Iterable[Message | ConsumedOffsets]) -> list[bytes]:
    """The messages among the entries; offsets have no meaning outside of their generation."""
    return [encode(entry) for entry in entries if isinstance(entry, Message)]


def _content(value: bytes | None) -> bytes:
    return _COUNT.pack(-1) if value is None else _COUNT.pack(len(value)) + value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        if self.position + form.size > len(self._data):
            raise ValueError("a kept message ends too early")
        values = form.unpack_from(self._data, self.position)
        self.position += form.size
        return values

    def content(self) -> bytes | None:
        (length,) = self.unpack(_COUNT)
        if length < 0:
            return None
        end = self.position + length
        if end > len(self._data):
            raise ValueError("a kept message ends too early")
        value = self._data[self.position : end]
        self.position = end
        return value

    def text(self) -> str:
        return (self.content() or b"").decode()
