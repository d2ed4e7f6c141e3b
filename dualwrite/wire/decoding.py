"""Compiles a message class and a version to a function that decodes it.

The function has no dispatch left in it: nested structs are inlined, and a run of fixed-size fields,
the length or count that follows them included, is one `Struct.unpack_from`.

Slices of bytes end silently at the end of the data, so a length beyond it is not checked where it is
read. The position only grows, hence it then differs from the end when the function is done, which
is checked; reading a number there fails at once. Counts are checked before anything is allocated.
"""

from collections.abc import Callable
from struct import calcsize, unpack_from
from typing import Any

from dualwrite.wire.message import (
    ARRAY,
    BYTES,
    NO_TAG,
    NO_UUID,
    RECORDS,
    STRING,
    STRUCT,
    FieldSpec,
    Kind,
    WireError,
    schema_of,
    specs_of,
)
from dualwrite.wire.primitives import (
    STRING_BYTES_MAX,
    check_count,
    read_uvarint,
    refuse_length,
    refuse_string,
    refuse_tag,
    skip_tags,
)
from dualwrite.wire.source import Source

Decoder = Callable[[Any, int], Any]


def compile_decoder(cls: type[Any], version: int, *, is_view: bool = False) -> Decoder:
    """A function of (data, position) that returns the message or raises WireError, IndexError,
    struct.error or UnicodeDecodeError. `data` is bytes, or a memoryview for `is_view`: each has its
    own, since what fits both is slower for the small messages, which come as bytes."""
    return _DecoderWriter(cls, version, is_view=is_view).compile()


class _DecoderWriter:
    def __init__(self, cls: type[Any], version: int, *, is_view: bool) -> None:
        scope = {
            "WireError": WireError,
            "check_count": check_count,
            "read_uvarint": read_uvarint,
            "refuse_length": refuse_length,
            "refuse_string": refuse_string,
            "refuse_tag": refuse_tag,
            "skip_tags": skip_tags,
            "unpack_from": unpack_from,
        }
        self._cls = cls
        self._version = version
        self._piece = "bytes(data[p:q])" if is_view else "data[p:q]"
        self._flexible = version in schema_of(cls).flexible
        self._source = Source("def decode(data, p):", scope)
        self._pending: list[tuple[str, str]] = []  # struct code and name of fields not read yet

    def compile(self) -> Decoder:
        source = self._source
        source.line("end = len(data)")
        if has_records(self._cls, self._version):
            source.line("view = memoryview(data)")
        message = self._struct(self._cls)
        self._flush()
        with source.block("if p > end:"):
            source.line("raise WireError(f'{p - end} bytes too few')")
        if not schema_of(self._cls).is_request:
            # Not in requests: librdkafka sends a Metadata request for all topics with three bytes
            # too many, and Kafka leaves what is behind a request unread.
            with source.block("if p < end:"):
                source.line("raise WireError(f'{end - p} bytes too many')")
        source.line(f"return {message}")
        return source.function("decode", f"decode {self._cls.__name__} v{self._version}")

    def _flush(self) -> None:
        """Reads the pending fixed-size fields in one go."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        names = ", ".join(name for _, name in self._pending)
        if codes == "B":
            self._source.line(f"{names} = data[p]")
        else:
            self._source.line(f"{names}, = {self._source.layout(codes, 'unpack_from')}(data, p)")
        self._source.line(f"p += {calcsize('>' + codes)}")
        self._pending.clear()

    def _struct(self, cls: type[Any]) -> str:
        """Reads a struct; returns the expression that builds it from the names read."""
        arguments = []
        tagged: list[tuple[FieldSpec, str]] = []
        for _, spec in specs_of(cls):
            present = self._version in spec.versions
            if present and spec.tag == NO_TAG:
                arguments.append(self._value(spec))
            elif present and self._flexible:
                arguments.append(self._source.name())
                tagged.append((spec, arguments[-1]))
            else:
                arguments.append(self._default(spec))
        if self._flexible:
            self._tags(tagged)
        return f"{self._source.constant(cls, cls.__name__)}({', '.join(arguments)})"

    def _default(self, spec: FieldSpec) -> str:
        if spec.default is None:
            return "None"
        if spec.kind is ARRAY:
            return "[]"
        if spec.kind is STRUCT:
            return f"{self._source.constant(spec.of, spec.of.__name__)}()"
        if spec.default is NO_UUID:
            return self._source.constant(NO_UUID)
        return repr(spec.default)

    def _value(self, spec: FieldSpec) -> str:
        """Reads one field; returns an expression for it."""
        kind = spec.kind
        nullable = self._version in spec.nullable
        if kind.code:
            name = self._source.name()
            self._pending.append((kind.code, name))
            return name
        if kind is STRUCT:
            return self._nested(spec, nullable)
        if kind is ARRAY:
            return self._array(spec.of, nullable)
        return self._text(kind, nullable)

    def _nested(self, spec: FieldSpec, nullable: bool) -> str:
        if not nullable:
            return self._struct(spec.of)
        source, name, marker = self._source, self._source.name(), self._source.name("n")
        self._pending.append(("b", marker))
        self._flush()
        source.line(f"{name} = None")
        with source.block(f"if {marker} >= 0:"):
            value = self._struct(spec.of)
            self._flush()
            source.line(f"{name} = {value}")
        return name

    def _length(self, legacy_code: str, *, is_string: bool = False) -> str:
        """Reads a length or count; -1 stands for null in the name returned."""
        name = self._source.name("n")
        self._pending.append(("B" if self._flexible else legacy_code, name))
        self._flush()
        if self._flexible:
            with self._source.block(f"if {name} > 127:"):
                self._source.line(f"{name}, p = read_uvarint(data, p - 1)")
                if is_string and schema_of(self._cls).is_request:
                    with self._source.block(f"if {name} > {STRING_BYTES_MAX + 1}:"):
                        self._source.line(f"refuse_string({name} - 1)")
            self._source.line(f"{name} -= 1")
        return name

    def _text(self, kind: Kind, nullable: bool) -> str:
        """Reads a string, bytes or records."""
        source, name = self._source, self._source.name()
        is_string = kind is STRING
        length = self._length("h" if is_string else "i", is_string=is_string)
        slices = {STRING: f"{self._piece}.decode()", BYTES: self._piece, RECORDS: "view[p:q]"}
        with source.block(f"if {length} >= 0:"):
            source.line(f"q = p + {length}")
            source.line(f"{name} = {slices[kind]}")
            source.line("p = q")
        self._null(name, length, nullable)
        return name

    def _null(self, name: str, length: str, nullable: bool) -> None:
        if nullable:
            with self._source.block(f"elif {length} == -1:"):
                self._source.line(f"{name} = None")
        with self._source.block("else:"):
            self._source.line(f"refuse_length({length})")

    def _array(self, of: Any, nullable: bool) -> str:
        source, name = self._source, self._source.name()
        count = self._length("i")
        with source.block(f"if {count} >= 0:"):
            smallest = self._smallest(of)
            with source.block(f"if {count} * {smallest} > end - p:"):
                source.line(f"check_count({count}, {smallest}, end - p)")
            if isinstance(of, Kind) and of.code:
                source.line(f"{name} = list(unpack_from(f'>{{{count}}}{of.code}', data, p))")
                source.line(f"p += {count} * {of.size}")
            else:
                source.line(f"{name} = []")
                with source.block(f"for _ in range({count}):"):
                    element = self._text(of, False) if isinstance(of, Kind) else self._struct(of)
                    self._flush()
                    source.line(f"{name}.append({element})")
        self._null(name, count, nullable)
        return name

    def _tags(self, tagged: list[tuple[FieldSpec, str]]) -> None:
        """Reads the tag section that ends a struct; unknown tags are skipped (KIP-482)."""
        source, count = self._source, self._source.name("n")
        self._pending.append(("B", count))
        self._flush()
        for spec, name in tagged:
            source.line(f"{name} = {self._default(spec)}")
        with source.block(f"if {count}:"):
            if not tagged:
                source.line("p = skip_tags(data, p - 1)")
                return
            tag, last = source.name("tag"), source.name("q")
            source.line(f"{count}, p = read_uvarint(data, p - 1)")
            source.line(f"check_count({count}, 2, end - p)")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, p = read_uvarint(data, p)")
                source.line(f"{last}, p = read_uvarint(data, p)")
                source.line(f"{last} += p")
                for spec, name in tagged:
                    with source.block(f"if {tag} == {spec.tag}:"):
                        self._tagged_value(spec, name, last)
                source.line(f"p = {last}")

    def _tagged_value(self, spec: FieldSpec, name: str, last: str) -> None:
        value = self._value(spec)
        self._flush()
        self._source.line(f"{name} = {value}")
        with self._source.block(f"if p != {last}:"):
            self._source.line(f"refuse_tag({spec.tag})")

    def _smallest(self, of: Any) -> int:
        """The fewest bytes that an array element takes."""
        if isinstance(of, Kind):
            return of.size or (1 if self._flexible else 2 if of is STRING else 4)
        total = 1 if self._flexible else 0
        for _, spec in specs_of(of):
            if self._version in spec.versions and spec.tag == NO_TAG:
                total += self._smallest_field(spec)
        return total

    def _smallest_field(self, spec: FieldSpec) -> int:
        if spec.kind is ARRAY:
            return 1 if self._flexible else 4
        if spec.kind is STRUCT:
            return 1 if self._version in spec.nullable else self._smallest(spec.of)
        return self._smallest(spec.kind)


def has_records(cls: type[Any], version: int) -> bool:
    """Whether this version of a message carries record batches somewhere."""
    for _, spec in specs_of(cls):
        if version not in spec.versions:
            continue
        if spec.kind is RECORDS:
            return True
        if isinstance(spec.of, type) and has_records(spec.of, version):
            return True
    return False
