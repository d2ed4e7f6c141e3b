"""Kafka messages to bytes and back, for any version.

    data = encode(EndTxnRequest(transactional_id="orders-0", producer_id=7), version=5)
    message = decode(EndTxnRequest, data, version=5)

Functions are compiled per class and version on first use.
"""

import struct
from typing import Any, TypeVar

from dualwrite.wire.decoding import Decoder, compile_decoder
from dualwrite.wire.encoding import Encoder, compile_encoder
from dualwrite.wire.message import WireError, schema_of

__all__ = ["WireError", "decode", "encode", "encode_parts"]

T = TypeVar("T")

_decoders: dict[tuple[type[Any], int], Decoder] = {}
_view_decoders: dict[tuple[type[Any], int], Decoder] = {}
_encoders: dict[tuple[type[Any], int], Encoder] = {}


def decode(cls: type[T], data: bytes | bytearray | memoryview, version: int, offset: int = 0) -> T:
    """The message in `data` from `offset` to the end; WireError for anything malformed.

    Records become views of `data`; give it as bytes or a memoryview, a bytearray is copied first.
    """
    if type(data) is bytearray:
        data = bytes(data)
    decoders = _decoders if type(data) is bytes else _view_decoders
    try:
        decoder = decoders[cls, version]
    except KeyError:
        is_view = decoders is _view_decoders
        decoder = compile_decoder(cls, _checked(cls, version), is_view=is_view)
        decoders[cls, version] = decoder
    try:
        message: T = decoder(data, offset)
    except (IndexError, struct.error) as error:
        raise WireError(f"{cls.__name__} v{version} is cut short") from error
    except UnicodeDecodeError as error:
        raise WireError(f"{cls.__name__} v{version} has a string that is not UTF-8") from error
    return message


def encode(message: Any, version: int) -> bytes:
    """The bytes of a message; WireError for values that this version can't carry."""
    parts = encode_parts(message, version)
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


def encode_parts(message: Any, version: int) -> list[bytes | memoryview]:
    """Like `encode`, as buffers to send one after the other, with record batches not copied."""
    cls = type(message)
    try:
        encoder = _encoders[cls, version]
    except KeyError:
        encoder = _encoders[cls, version] = compile_encoder(cls, _checked(cls, version))
    try:
        return encoder(message)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise WireError(f"{cls.__name__} v{version} can't be encoded: {error}") from error


def _checked(cls: type[Any], version: int) -> int:
    if version not in schema_of(cls).versions:
        raise WireError(f"{cls.__name__} has no version {version}")
    return version
