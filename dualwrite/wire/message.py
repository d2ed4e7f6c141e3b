"""How a Kafka message is described: typed classes whose versions are data.

    @request(26, "0-5", flexible="3+")
    class EndTxnRequest:
        transactional_id: str = string()
        producer_id: int = int64()

Every field has a default, so callers fill in only what they need. `dualwrite.wire.compiler` turns a
class and a version into straight-line code on first use; nothing is compiled at import.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")

# A list of buffers lets a fetch answer point at several slices of a log without joining them.
Buffers = bytes | memoryview | list[bytes | memoryview]

_MADE = object()  # the default of a field that gets a new list or struct each time

NO_UUID = bytes(16)
NO_TAG = -1
NO_API = -1
NO_VERSION = 1 << 15  # above every version: an int16 can't reach it


class WireError(ValueError):
    """Bytes that are not the message they claim to be, or values that the version can't carry."""


class Versions(NamedTuple):
    """An inclusive range of message versions."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Reads Kafka's notation: "3", "3+", "0-5", or "" for none."""
        if not text:
            return cls(NO_VERSION, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), NO_VERSION)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))


@dataclass(slots=True, frozen=True)
class Kind:
    """A type on the wire; `code` is its struct format where the size is fixed."""

    name: str
    code: str = ""
    size: int = 0


INT8 = Kind("int8", "b", 1)
INT16 = Kind("int16", "h", 2)
INT32 = Kind("int32", "i", 4)
INT64 = Kind("int64", "q", 8)
UINT16 = Kind("uint16", "H", 2)
FLOAT64 = Kind("float64", "d", 8)
BOOL = Kind("bool", "?", 1)
UUID = Kind("uuid", "16s", 16)
STRING = Kind("string")
BYTES = Kind("bytes")
RECORDS = Kind("records")
STRUCT = Kind("struct")
ARRAY = Kind("array")


class FieldSpec(NamedTuple):
    """What the wire needs to know about one attribute."""

    kind: Kind
    versions: Versions
    nullable: Versions
    default: Any
    tag: int
    ignorable: bool
    of: Any  # the class of a struct; of an array, the class or the Kind of its elements


class MessageSchema(NamedTuple):
    """What the wire needs to know about a whole request or response."""

    api_key: int
    versions: Versions
    flexible: Versions
    is_request: bool


def _spec(
    kind: Kind,
    versions: str,
    default: Any,
    *,
    nullable: str = "",
    tag: int = NO_TAG,
    ignorable: bool = False,
    of: Any = None,
) -> Any:
    spec = FieldSpec(
        kind, Versions.parse(versions), Versions.parse(nullable), default, tag, ignorable, of
    )
    if kind is ARRAY and default is not None:
        return field(default_factory=list, metadata={"wire": spec})
    if kind is STRUCT and default is not None:
        return field(default_factory=of, metadata={"wire": spec})
    return field(default=default, metadata={"wire": spec})


def _number(kind: Kind, zero: Any) -> Callable[..., Any]:
    def specify(
        versions: str = "0+", *, default: Any = zero, tag: int = NO_TAG, ignorable: bool = False
    ) -> Any:
        return _spec(kind, versions, default, tag=tag, ignorable=ignorable)

    return specify


int8 = _number(INT8, 0)
int16 = _number(INT16, 0)
int32 = _number(INT32, 0)
int64 = _number(INT64, 0)
uint16 = _number(UINT16, 0)
float64 = _number(FLOAT64, 0.0)
boolean = _number(BOOL, False)
uuid = _number(UUID, NO_UUID)


def string(
    versions: str = "0+",
    *,
    nullable: str = "",
    default: str | None = "",
    tag: int = NO_TAG,
    ignorable: bool = False,
) -> Any:
    """UTF-8 text."""
    return _spec(STRING, versions, default, nullable=nullable, tag=tag, ignorable=ignorable)


def binary(
    versions: str = "0+",
    *,
    nullable: str = "",
    default: bytes | None = b"",
    tag: int = NO_TAG,
    ignorable: bool = False,
) -> Any:
    """Opaque bytes, copied out of the frame when decoded."""
    return _spec(BYTES, versions, default, nullable=nullable, tag=tag, ignorable=ignorable)


def records(versions: str = "0+", *, nullable: str = "0+") -> Any:
    """Record batches: decoded to a memoryview of the frame, encoded without being copied."""
    return _spec(RECORDS, versions, None, nullable=nullable)


def array(
    of: Any,
    versions: str = "0+",
    *,
    nullable: str = "",
    default: tuple[()] | None = (),
    tag: int = NO_TAG,
    ignorable: bool = False,
) -> Any:
    """A list of a struct class or of one of the Kinds above."""
    return _spec(ARRAY, versions, default, nullable=nullable, tag=tag, ignorable=ignorable, of=of)


def nested(
    of: Any, versions: str = "0+", *, nullable: str = "", default: tuple[()] | None = ()
) -> Any:
    """A struct inside a struct; `default=None` for those that Kafka sends as null."""
    return _spec(STRUCT, versions, default, nullable=nullable, of=of)


def tagged(of: Any, versions: str, *, tag: int) -> Any:
    """A struct in a tagged field. None stands for "not sent", which saves building its defaults."""
    return _spec(STRUCT, versions, None, tag=tag, of=of)


def _is_equal(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return False
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _show(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
    return f"{type(self).__name__}({values})"


def _first_init(self: Any, *args: Any, **values: Any) -> None:
    """Stands in for `__init__` until the first message of a class is made."""
    cls = type(self)
    cls.__init__ = _init_of(cls)
    cls.__init__(self, *args, **values)


def _init_of(cls: type[Any]) -> Callable[..., None]:
    scope: dict[str, Any] = {}
    parameters = []
    lines = []
    for each in fields(cls):
        scope[f"_{each.name}"] = _MADE if each.default is MISSING else each.default
        parameters.append(f"{each.name}=_{each.name}")
        value = each.name
        if each.default is MISSING:
            scope[f"_make_{each.name}"] = each.default_factory
            value = f"_make_{each.name}() if {each.name} is _{each.name} else {each.name}"
        lines.append(f"    self.{each.name} = {value}\n")
    source = f"def __init__(self, {', '.join(parameters)}):\n{''.join(lines) or '    pass'}"
    exec(source, scope)
    made: Callable[..., None] = scope["__init__"]
    return made


def _finish(cls: type[T]) -> type[T]:
    # Generating methods for each of two hundred classes would triple the import time.
    cls.__init__ = _first_init  # type: ignore[method-assign]
    cls.__eq__ = _is_equal  # type: ignore[method-assign]
    cls.__hash__ = None  # type: ignore[assignment]
    cls.__repr__ = _show  # type: ignore[method-assign]
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclass() would compute a signature instead
    return dataclass(slots=True, init=False, eq=False, repr=False, match_args=False)(cls)


@dataclass_transform()
def struct(cls: type[T]) -> type[T]:
    """A struct that is part of a message."""
    return _finish(cls)


@dataclass_transform()
def request(api_key: int, versions: str, *, flexible: str = "") -> Callable[[type[T]], type[T]]:
    """A request with its API key, its versions and the versions with tagged fields."""
    return _message(api_key, versions, flexible, is_request=True)


@dataclass_transform()
def response(api_key: int, versions: str, *, flexible: str = "") -> Callable[[type[T]], type[T]]:
    """A response, described like its request."""
    return _message(api_key, versions, flexible, is_request=False)


@dataclass_transform()
def stored(versions: str, *, flexible: str = "") -> Callable[[type[T]], type[T]]:
    """A structure that Kafka keeps in an internal topic instead of sending it."""
    return _message(NO_API, versions, flexible, is_request=False)


def _message(
    api_key: int, versions: str, flexible: str, *, is_request: bool
) -> Callable[[type[T]], type[T]]:
    schema = MessageSchema(api_key, Versions.parse(versions), Versions.parse(flexible), is_request)

    def decorate(cls: type[T]) -> type[T]:
        finished = _finish(cls)
        finished.schema = schema  # type: ignore[attr-defined]
        return finished

    return decorate


def schema_of(cls: type[Any]) -> MessageSchema:
    """The schema of a request or response class."""
    schema = getattr(cls, "schema", None)
    if not isinstance(schema, MessageSchema):
        raise TypeError(f"{cls.__name__} is neither a request nor a response")
    return schema


def specs_of(cls: type[Any]) -> list[tuple[str, FieldSpec]]:
    """The attributes of a message or struct class, in wire order."""
    return [(attribute.name, attribute.metadata["wire"]) for attribute in fields(cls)]
