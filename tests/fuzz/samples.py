"""Messages with random contents, and bytes that are almost right."""

import importlib
import pkgutil
from functools import cache

import dualwrite.wire.messages
from dualwrite.wire import message as wire
from dualwrite.wire.codec import encode
from dualwrite.wire.message import schema_of, specs_of
from dualwrite.wire.records import build_batch

NAMES = ("", "t", "orders", "orders-0", "group", "__transaction_state", "User:a", "é", "x" * 300)
NUMBERS = (0, 1, 2, -1, 5, 12, 127, 1000)


@cache
def message_classes():
    """All requests and responses as (class, version), in a fixed order."""
    found = []
    for module in pkgutil.iter_modules(dualwrite.wire.messages.__path__):
        contents = vars(importlib.import_module(f"dualwrite.wire.messages.{module.name}"))
        for cls in contents.values():
            if isinstance(cls, type) and cls.__module__.endswith(module.name):
                if not hasattr(cls, "schema"):
                    continue  # a part of a message
                first, last = schema_of(cls).versions
                found += [(cls, version) for version in range(first, last + 1)]
    return sorted(found, key=lambda one: (one[0].__name__, one[1]))


def requests():
    return [one for one in message_classes() if schema_of(one[0]).is_request]


def sample(cls, version, random):
    """A message with values that its version can carry."""
    values = {}
    for name, spec in specs_of(cls):
        if version in spec.versions and random.random() < 0.9:
            values[name] = _value(spec, version, random)
    return cls(**values)


def _value(spec, version, random):
    if version in spec.nullable and random.random() < 0.1:
        return None
    if spec.kind is wire.ARRAY:
        if isinstance(spec.of, wire.Kind):
            return [_plain(spec.of, random) for _ in range(random.randrange(4))]
        return [sample(spec.of, version, random) for _ in range(random.randrange(3))]
    if spec.kind is wire.STRUCT:
        return sample(spec.of, version, random)
    return _plain(spec.kind, random)


def _plain(kind, random):
    if kind is wire.STRING:
        return random.choice(NAMES)
    if kind is wire.BYTES:
        return random.randbytes(random.randrange(40))
    if kind is wire.RECORDS:
        return batch(random)
    if kind is wire.UUID:
        return random.randbytes(16) if random.random() < 0.5 else bytes(16)
    if kind is wire.BOOL:
        return random.random() < 0.5
    if kind is wire.FLOAT64:
        return random.choice((0.0, 1.5, float("inf")))
    if kind is wire.UINT16:
        return random.randrange(2**16)
    if random.random() < 0.8:
        return random.choice(NUMBERS[:-1] if kind is wire.INT8 else NUMBERS)
    bits = 8 * kind.size - 1
    return random.randrange(-(2**bits), 2**bits)


def batch(random):
    """A record batch as a producer would send it."""
    pairs = [(random.randbytes(4), random.randbytes(30)) for _ in range(random.randrange(1, 4))]
    return build_batch(
        [(key, value, (), 1_700_000_000_000) for key, value in pairs],
        compression=random.randrange(5),
    )


def damage(data, random):
    """The same bytes with a few changes: flipped, cut, repeated, or with large numbers in them."""
    changed = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        where = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0 if changed:
                changed[where % len(changed)] = random.randrange(256)
            case 1:
                del changed[where : where + random.randrange(9)]
            case 2:
                changed[where:where] = random.choice((b"\xff" * 5, b"\x7f\xff\xff\xff", b"\0" * 8))
            case 3:
                changed[where : where + 4] = random.choice((b"\x7f\xff\xff\xff", b"\x80\0\0\0"))
            case _:
                changed[where:where] = changed[where // 2 : where][:64]
    return bytes(changed)


def encoded(cls, version, random):
    return encode(sample(cls, version, random), version)
