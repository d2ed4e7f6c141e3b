"""A Kafka client made of a socket and kio's messages: nothing of ours but record batches.

Whoever writes a client or a broker can take this suite as it is: it says, version by version, which
code each transaction request gets. DUALWRITE_CONFORMANCE_BOOTSTRAP=host:port runs it against another.
"""

import io
import socket
import struct
from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_type_hints

from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from tests.wire.oracles import KafkaPython, plain

FLEXIBLE_FROM = {
    0: 9, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 14: 4, 18: 3, 19: 5, 22: 2, 24: 3, 25: 3, 26: 3, 27: 1,
    28: 3, 61: 0, 65: 0, 66: 0,
}  # fmt: skip


@cache
def request_type(api_key: int, version: int) -> Any:
    module = load_payload_module(api_key, version, EntityType.request)
    return next(
        entity
        for entity in vars(module).values()
        if getattr(entity, "__type__", None) is EntityType.request
    )


def build(entity: Any, values: dict[str, Any]) -> Any:
    """A kio message from plain values; those that the version does not have are left out."""
    hints = get_type_hints(entity)
    arguments = {}
    for field in fields(entity):
        if field.name not in values:
            continue
        value = values[field.name]
        if str(field.metadata.get("kafka_type", "")).startswith("timedelta"):
            value = timedelta(milliseconds=value)
        elif isinstance(value, list):
            inner = [a for a in get_args(hints[field.name]) if a is not Ellipsis]
            inner = [a for a in (get_args(inner[0]) or inner) if a is not type(None)]
            value = tuple(build(inner[0], v) if isinstance(v, dict) else v for v in value)
        arguments[field.name] = value
    return entity(**arguments)


class Raw:
    """One connection; `ask` sends a request and returns the answer as plain values."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        entity = request_type(api_key, version)
        body = io.BytesIO()
        entity_writer(entity)(body, build(entity, values))
        self._number += 1
        is_flexible = version >= FLEXIBLE_FROM[api_key]
        head = struct.pack(">hhih", api_key, version, self._number, 3) + b"raw"
        frame = head + (b"\0" if is_flexible else b"") + body.getvalue()
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self._read(struct.unpack(">i", self._read(4))[0])
        assert struct.unpack_from(">i", answer)[0] == self._number
        payload = answer[5 if is_flexible else 4 :]
        # kio refuses tags that it does not know (ours of InitProducerId v6); kafka-python skips them.
        message = KafkaPython._registry()[api_key, False].decode(payload, version=version)
        return plain(message)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker has closed the connection"
            data += more
        return data
