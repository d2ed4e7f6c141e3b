"""Compiles a message class and a version to a function that encodes it.

Like the decoder, the function has no dispatch left in it, and a run of fixed-size fields together with
the length that follows them is one `Struct.pack`. Record batches are never copied: a message which
carries them becomes a list of buffers.
"""

from collections.abc import Callable
from struct import pack
from typing import Any

from dualwrite.wire.decoding import has_records
from dualwrite.wire.message import (
    ARRAY,
    NO_TAG,
    RECORDS,
    STRING,
    STRUCT,
    UUID,
    FieldSpec,
    Kind,
    WireError,
    schema_of,
    specs_of,
)
from dualwrite.wire.primitives import (
    SHORT_UVARINTS,
    STRING_BYTES_MAX,
    refuse_absent,
    refuse_string,
    write_uvarint,
)
from dualwrite.wire.source import Source

Encoder = Callable[[Any], list[bytes | memoryview]]


def compile_encoder(cls: type[Any], version: int) -> Encoder:
    """A function of a message that returns its buffers or raises WireError, struct.error, TypeError,
    AttributeError or UnicodeEncodeError."""
    return _EncoderWriter(cls, version).compile()


def size_of(buffers: Any) -> int:
    """The bytes in a buffer, or in a list of buffers."""
    return sum(map(len, buffers)) if isinstance(buffers, list) else len(buffers)


def check_uuid(value: bytes) -> bytes:
    """A UUID is sixteen bytes; `struct` would pad or cut anything else."""
    if len(value) != 16:
        raise WireError(f"a UUID of {len(value)} bytes")
    return value


class _EncoderWriter:
    def __init__(self, cls: type[Any], version: int) -> None:
        scope = {
            "SHORT": SHORT_UVARINTS,
            "check_uuid": check_uuid,
            "pack": pack,
            "refuse_absent": refuse_absent,
            "refuse_string": refuse_string,
            "size_of": size_of,
            "write_uvarint": write_uvarint,
            "join": b"".join,
        }
        self._cls = cls
        self._version = version
        self._flexible = version in schema_of(cls).flexible
        self._source = Source("def encode(m):", scope)
        self._add = "add"  # the name of the method that takes the next bytes
        self._pending: list[tuple[str, str]] = []  # struct code and expression, not written yet

    def compile(self) -> Encoder:
        source = self._source
        source.line("out = []")
        source.line("add = out.append")
        scattered = has_records(self._cls, self._version)
        if scattered:
            source.line("parts = []")
        self._struct(self._cls, "m")
        self._flush()
        if scattered:
            source.line("parts.append(join(out))")
            source.line("return parts")
        else:
            source.line("return [join(out)]")
        return source.function("encode", f"encode {self._cls.__name__} v{self._version}")

    def _flush(self) -> None:
        """Writes the pending fixed-size fields in one go."""
        if self._pending:
            self._source.line(f"{self._add}({self._packed(self._pending)})")
            self._pending = []

    def _packed(self, pending: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in pending)
        if not codes.strip("x"):
            return repr(bytes(len(codes)))
        arguments = ", ".join(expression for code, expression in pending if code != "x")
        return f"{self._source.layout(codes, 'pack')}({arguments})"

    def _count(self, value: str, legacy_code: str, *, is_string: bool = False) -> None:
        """Writes a length or count which `value` holds, -1 for null, with whatever is pending."""
        if not self._flexible:
            self._pending.append((legacy_code, value))
            self._flush()
            return
        pending, self._pending = self._pending, []
        self._source.line(f"{value} += 1")
        with self._source.block(f"if {value} < 128:"):
            short = self._packed([*pending, ("B", value)]) if pending else f"SHORT[{value}]"
            self._source.line(f"{self._add}({short})")
        with self._source.block("else:"):
            if is_string and schema_of(self._cls).is_request:
                with self._source.block(f"if {value} > {STRING_BYTES_MAX + 1}:"):
                    self._source.line(f"refuse_string({value} - 1)")
            if pending:
                self._source.line(f"{self._add}({self._packed(pending)})")
            self._source.line(f"{self._add}(write_uvarint({value}))")

    def _struct(self, cls: type[Any], owner: str) -> None:
        tagged: list[tuple[FieldSpec, str]] = []
        for name, spec in specs_of(cls):
            value = f"{owner}.{name}"
            present = self._version in spec.versions
            if present and spec.tag == NO_TAG:
                self._value(spec, value)
            elif present and self._flexible:
                tagged.append((spec, value))
            elif not spec.ignorable:
                with self._source.block(f"if {self._is_set(spec, value)}:"):
                    self._source.line(f"refuse_absent({name!r}, {self._version})")
        if self._flexible:
            self._tags(sorted(tagged, key=lambda item: item[0].tag))

    def _is_set(self, spec: FieldSpec, value: str) -> str:
        """A condition that holds if the field differs from its default."""
        if spec.kind is STRUCT:
            default = self._source.constant(spec.of())
            return f"{value} is not None and {value} != {default}"
        if spec.default is None:
            return f"{value} is not None"
        if spec.kind is ARRAY or not spec.default:
            return value
        return f"{value} != {self._source.constant(spec.default)}"

    def _value(self, spec: FieldSpec, value: str) -> None:
        kind = spec.kind
        nullable = self._version in spec.nullable
        if kind is UUID:
            self._pending.append((kind.code, f"check_uuid({value})"))
        elif kind.code:
            self._pending.append((kind.code, value))
        elif kind is STRUCT:
            self._nested(spec, value, nullable)
        elif kind is ARRAY:
            self._array(spec.of, value, nullable)
        elif kind is RECORDS:
            self._records(value)
        else:
            self._text(kind, value, nullable)

    def _nested(self, spec: FieldSpec, value: str, nullable: bool) -> None:
        source, name = self._source, self._source.name()
        source.line(f"{name} = {value}")
        if not nullable:
            self._struct(spec.of, name)
            return
        self._flush()
        with source.block(f"if {name} is None:"):
            source.line(f"{self._add}({pack('b', -1)!r})")
        with source.block("else:"):
            self._pending.append(("b", "1"))
            self._struct(spec.of, name)
            self._flush()

    def _text(self, kind: Kind, value: str, nullable: bool) -> None:
        """Writes a string or bytes."""
        source, name, length = self._source, self._source.name(), self._source.name("n")
        encoded = f"{value}.encode()" if kind is STRING else value
        code = "h" if kind is STRING else "i"
        if not nullable:
            source.line(f"{name} = {encoded}")
            source.line(f"{length} = len({name})")
        else:
            with source.block(f"if {value} is None:"):
                source.line(f"{name} = b''")
                source.line(f"{length} = -1")
            with source.block("else:"):
                source.line(f"{name} = {encoded}")
                source.line(f"{length} = len({name})")
        self._count(length, code, is_string=kind is STRING)
        source.line(f"{self._add}({name})")

    def _records(self, value: str) -> None:
        source, name, length = self._source, self._source.name(), self._source.name("n")
        source.line(f"{name} = {value}")
        source.line(f"{length} = -1 if {name} is None else size_of({name})")
        self._count(length, "i")
        with source.block(f"if {name}:"):
            source.line("parts.append(join(out))")
            source.line("out.clear()")
            with source.block(f"if isinstance({name}, list):"):
                source.line(f"parts.extend({name})")
            with source.block("else:"):
                source.line(f"parts.append({name})")

    def _array(self, of: Any, value: str, nullable: bool) -> None:
        source, name, count = self._source, self._source.name(), self._source.name("n")
        source.line(f"{name} = {value}")
        if nullable:
            source.line(f"{count} = -1 if {name} is None else len({name})")
        else:
            source.line(f"{count} = len({name})")
        self._count(count, "i")
        with source.block(f"if {name}:"):
            if isinstance(of, Kind) and of.code:
                source.line(f"{self._add}(pack(f'>{{len({name})}}{of.code}', *{name}))")
                return
            element = source.name("e")
            with source.block(f"for {element} in {name}:"):
                if isinstance(of, Kind):
                    self._text(of, element, False)
                else:
                    self._struct(of, element)
                self._flush()

    def _tags(self, tagged: list[tuple[FieldSpec, str]]) -> None:
        """Writes the tag section that ends a struct: only fields that differ from their defaults."""
        if not tagged:
            self._pending.append(("x", ""))
            return
        source = self._source
        conditions = [f"({self._is_set(spec, value)})" for spec, value in tagged]
        self._flush()
        with source.block(f"if not ({' or '.join(conditions)}):"):
            source.line(f"{self._add}(b'\\0')")
        with source.block("else:"):
            total = " + ".join(f"bool{condition}" for condition in conditions)
            source.line(f"{self._add}(write_uvarint({total}))")
            for condition, (spec, value) in zip(conditions, tagged, strict=True):
                with source.block(f"if {condition}:"):
                    self._tagged_value(spec, value)

    def _tagged_value(self, spec: FieldSpec, value: str) -> None:
        source, outer, part = self._source, self._add, self._source.name("t")
        self._add = f"{part}.append"
        source.line(f"{part} = []")
        self._value(spec, value)
        self._flush()
        self._add = outer
        source.line(f"{part} = join({part})")
        source.line(f"{outer}({write_tag(spec.tag)!r} + write_uvarint(len({part})) + {part})")


def write_tag(tag: int) -> bytes:
    """The number that opens a tagged field."""
    return write_uvarint(tag)
