"""The variable-length parts of Kafka's wire format that compiled code calls when a value is long."""

from typing import NoReturn

from dualwrite.wire.message import WireError

# A size or count is an unsigned varint of at most 32 bits; almost all fit into one byte.
UVARINT_BYTES_MAX = 5
# Kafka's limit, also where a length would allow more: old versions and stored keys have int16 lengths.
STRING_BYTES_MAX = 0x7FFF
SHORT_UVARINTS = tuple(bytes((value,)) for value in range(128))


def write_uvarint(value: int) -> bytes:
    """The unsigned varint of a size, a count or a tag."""
    if value < 128:
        return SHORT_UVARINTS[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_uvarint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position` and the position behind it."""
    value = 0
    for index in range(UVARINT_BYTES_MAX):
        byte = data[position + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            if value >> 32:
                raise WireError("an unsigned varint has more than 32 bits")
            return value, position + index + 1
    raise WireError(f"an unsigned varint has more than {UVARINT_BYTES_MAX} bytes")


def skip_tags(data: bytes | memoryview, position: int) -> int:
    """The position behind a tag section in which no tag is known (KIP-482)."""
    count, position = read_uvarint(data, position)
    check_count(count, 2, len(data) - position)
    for _ in range(count):
        _, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        position += size
    return position


def check_count(count: int, element_bytes_min: int, bytes_left: int) -> None:
    """Refuses a count that the bytes left can't hold, before anything is allocated for it."""
    if count * element_bytes_min > bytes_left:
        raise WireError(f"{count} elements do not fit into the {bytes_left} bytes left")


def refuse_length(length: int) -> NoReturn:
    """Reports a null where the version has none, or a length below zero."""
    raise WireError(f"length {length} in a field that can't be null")


def refuse_string(length: int) -> NoReturn:
    """Reports a string that no older version of the message could carry."""
    raise WireError(f"a string of {length} bytes, {STRING_BYTES_MAX} is the limit")


def refuse_tag(tag: int) -> NoReturn:
    """Reports a tagged field whose size is not that of its value."""
    raise WireError(f"tagged field {tag} has the wrong size")


def refuse_absent(name: str, version: int) -> NoReturn:
    """Reports a value that would be lost, because the version has no such field."""
    raise WireError(f"version {version} has no field {name}")
