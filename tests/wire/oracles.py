"""Two independent implementations of Kafka's messages, made comparable with ours.

kio is generated from Kafka's schemas; kafka-python interprets them at run time. Each oracle decodes
our bytes, tells the values by field name, and encodes them again.
"""

import datetime
import importlib
import io
import pkgutil
import uuid
import warnings
from dataclasses import fields, is_dataclass
from functools import cache

from kio.index import load_payload_module
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from dualwrite.wire.messages.api_versions import ApiVersionsResponse

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage

    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)


def plain(value):
    """A value as both sides can have it: numbers, text, bytes, lists and dicts."""
    if isinstance(value, bool | str | float) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, set):
        # kafka-python has a bit field of rights as the set of its bits.
        return int.from_bytes(sum(1 << bit for bit in value).to_bytes(4), signed=True)
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    # A struct of kafka-python: only what its version has.
    return {
        field.name: plain(getattr(value, field.name))
        for field in value._struct._fields
        if field.for_version_q(value._version)
    }


class Kio:
    """Refuses unknown tags and unknown error codes, has times as timedelta and datetime."""

    name = "kio"

    @staticmethod
    def has(api_key, version):
        return version in schema_name_map.get(api_key_map.get(api_key, ""), {})

    @staticmethod
    def reads(message):
        return True

    @staticmethod
    @cache
    def _entity(api_key, version, is_request):
        kind = EntityType.request if is_request else EntityType.response
        module = load_payload_module(api_key, version, kind)
        found = [
            entity for entity in vars(module).values() if getattr(entity, "__type__", None) is kind
        ]
        assert len(found) == 1
        return entity_reader(found[0]), entity_writer(found[0])

    @classmethod
    def translate(cls, api_key, version, is_request, data):
        """The values in `data`, and the bytes that kio makes of them."""
        read, write = cls._entity(api_key, version, is_request)
        entity, size = read(data, 0)
        assert size == len(data)
        buffer = io.BytesIO()
        write(buffer, entity)
        return plain(entity), buffer.getvalue()


def _classes(cls):
    for child in cls.__subclasses__():
        yield child
        yield from _classes(child)


class KafkaPython:
    """Has the values as they are on the wire."""

    name = "kafka-python"

    @staticmethod
    @cache
    def _registry():
        return {
            (cls.API_KEY, cls.is_request()): cls
            for cls in _classes(ApiMessage)
            if getattr(cls, "_json", None) and cls._class_version is None
        }

    @classmethod
    def has(cls, api_key, version):
        found = cls._registry().get((api_key, True))
        return found is not None and version <= found.max_version

    @staticmethod
    def reads(message):
        """An ApiVersions response with an error is read as version 0, whatever was asked (KIP-511)."""
        return not (isinstance(message, ApiVersionsResponse) and message.error_code)

    @classmethod
    def translate(cls, api_key, version, is_request, data):
        """The values in `data`, and the bytes that kafka-python makes of them."""
        message = cls._registry()[api_key, is_request].decode(data, version=version)
        message._header = None  # decoding leaves it unset, encoding asks for it
        return plain(message), bytes(message.encode(version=version))


ORACLES = (Kio, KafkaPython)
