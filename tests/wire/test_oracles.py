"""Every message in every version against two independent implementations.

Values are drawn from our own descriptions of the messages, encoded by us, decoded and encoded again
by the oracle: the bytes must be the same, and so must the value of each field by its name.
"""

import struct
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KnownCode

from dualwrite.wire.codec import WireError, decode, encode
from dualwrite.wire.message import (
    ARRAY,
    BOOL,
    BYTES,
    FLOAT64,
    NO_TAG,
    NO_UUID,
    RECORDS,
    STRING,
    STRUCT,
    UUID,
    Kind,
    schema_of,
    specs_of,
)
from dualwrite.wire.messages import APIS, request_class, response_class
from tests.wire.oracles import ORACLES, KafkaPython, Kio

PRIVATE_TAG = 10_000  # ours alone: other implementations skip it or, like kio, refuse it
LAST_MS = 4_102_444_800_000  # kio has times as datetime, which ends before int64 does

CASES = [
    pytest.param(key, version, is_request, id=f"{name}-{kind}-v{version}")
    for key, (name, _) in APIS.items()
    for is_request, kind, find in ((True, "request", request_class), (False, "response", response_class))
    for versions in (schema_of(find(key)).versions,)
    for version in range(versions.first, versions.last + 1)
]  # fmt: skip

# What an oracle doesn't have. A line here is a message that fewer eyes have seen.
NOT_IN_KIO = {(18, 5), (28, 6)}
NOT_IN_KAFKA_PYTHON = {(18, 5), (28, 6), (68, 0), (68, 1), (69, 0), (69, 1)}


# Names that differ: how an acronym is cut into words, a field that Kafka renamed for KIP-848, and rights.
ALIASES = {
    "enable_2pc": "enable2_pc",
    "generation_id_or_member_epoch": "generation_id",
    "cluster_authorized_operations": "authorized_operations",
    "topic_authorized_operations": "authorized_operations",
}
# Values that an oracle shows as None: no id, "rights were not asked for".
NULLS = (NO_UUID, -(1 << 31))


def class_of(key, is_request):
    return request_class(key) if is_request else response_class(key)


def number(kind, name):
    size = struct.calcsize(kind.code)
    if name.endswith("error_code"):
        return st.sampled_from([code.value for code in KnownCode])
    if size == 8 and ("time" in name or name.endswith("_ms")):
        return st.integers(0, LAST_MS)
    low, high = (
        (0, 256**size - 1) if kind.code.isupper() else (-(256**size) // 2, 256**size // 2 - 1)
    )
    return st.integers(low, high) | st.sampled_from([0, low, high])


def element(kind, name, of, version, private):
    if kind is STRUCT or not isinstance(kind, Kind):
        return messages(of, version, private)
    if kind is STRING:
        return st.text(max_size=8)
    if kind is BYTES or kind is RECORDS:
        return st.binary(max_size=12)
    if kind is UUID:
        return st.binary(min_size=16, max_size=16)
    if kind is BOOL:
        return st.booleans()
    if kind is FLOAT64:
        return st.floats(allow_nan=False)
    return number(kind, name)


@cache
def messages(cls, version, private=False):
    """Messages with all that a version has, and nothing that it hasn't."""
    parts = {}
    for name, spec in specs_of(cls):
        if version not in spec.versions or (spec.tag >= PRIVATE_TAG and not private):
            continue
        if spec.kind is ARRAY:
            values = st.lists(element(spec.of, name, spec.of, version, private), max_size=2)
        else:
            values = element(spec.kind, name, spec.of, version, private)
        if version in spec.nullable or (spec.tag != NO_TAG and spec.kind is STRUCT):
            values = st.none() | values
        parts[name] = values
    return st.builds(cls, **parts)


def assert_same(ours, theirs, version):
    """Compare by name; kio leaves the unit out of the names of times."""
    known = [(name, spec) for name, spec in specs_of(type(ours)) if version in spec.versions]
    known = [(name, spec) for name, spec in known if spec.tag < PRIVATE_TAG]
    assert len(theirs) == len(known)
    for name, spec in known:
        names = {name, name.removesuffix("_ms"), ALIASES.get(name)} & theirs.keys()
        assert len(names) == 1, name
        value = getattr(ours, name)
        if value is None and spec.tag != NO_TAG:
            continue  # not sent; the oracle shows a default
        assert_same_value(value, theirs[names.pop()], version)


def assert_same_value(value, other, version):
    if isinstance(value, list):
        assert len(value) == len(other)
        for mine, its in zip(value, other, strict=True):
            assert_same_value(mine, its, version)
    elif hasattr(value, "__slots__") and not isinstance(value, int):
        assert_same(value, other, version)
    elif value in NULLS and other is None:
        pass
    else:
        assert other == value


quick = settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking large messages takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("key", "version", "is_request"), CASES)
def test_same_bytes_and_values_as_the_oracles(key, version, is_request):
    cls = class_of(key, is_request)
    oracles = [oracle for oracle in ORACLES if oracle.has(key, version)]

    @quick
    @given(messages(cls, version))
    def check(message):
        data = encode(message, version)
        assert decode(cls, data, version) == message
        assert decode(cls, memoryview(bytearray(data)), version) == message
        for oracle in (oracle for oracle in oracles if oracle.reads(message)):
            values, again = oracle.translate(key, version, is_request, data)
            assert again == data, oracle.name
            assert_same(message, values, version)

    check()


def test_which_versions_an_oracle_lacks():
    pairs = {(case.values[0], case.values[1]) for case in CASES}

    assert {pair for pair in pairs if not Kio.has(*pair)} == NOT_IN_KIO
    assert {pair for pair in pairs if not KafkaPython.has(*pair)} == NOT_IN_KAFKA_PYTHON


@pytest.mark.parametrize(("key", "name", "first"), [(k, n, f) for k, (n, f) in APIS.items()])
def test_first_flexible_versions_are_those_of_the_classes(key, name, first):
    for cls in (request_class(key), response_class(key)):
        assert (schema_of(cls).api_key, schema_of(cls).flexible.first) == (key, first)
        assert cls.__name__.startswith(name)


def newest(key, is_request):
    return schema_of(class_of(key, is_request)).versions.last


FLEXIBLE = [
    pytest.param(key, is_request, id=f"{name}-{'request' if is_request else 'response'}")
    for key, (name, first) in APIS.items()
    for is_request in (True, False)
    if newest(key, is_request) >= first
]


@pytest.mark.parametrize(("key", "is_request"), FLEXIBLE)
def test_private_fields_come_back_and_unknown_tags_are_skipped(key, is_request):
    cls, version = class_of(key, is_request), newest(key, is_request)

    @quick
    @given(messages(cls, version, private=True))
    def check(message):
        data = encode(message, version)
        assert decode(cls, data, version) == message
        if data.endswith(b"\0") and not any(spec.tag != NO_TAG for _, spec in specs_of(cls)):
            # The message's own section of tags is the last byte: none. Give it two from the future.
            unknown = b"\2" + b"\x63\3abc" + b"\xce\x10\0"
            assert decode(cls, data[:-1] + unknown, version) == message

    check()


@pytest.mark.parametrize(("key", "version", "is_request"), CASES[::3])
def test_cut_short_is_an_error_of_ours(key, version, is_request):
    cls = class_of(key, is_request)

    @settings(quick, max_examples=3)
    @given(messages(cls, version), st.data())
    def check(message, data):
        encoded = encode(message, version)
        if encoded:
            end = data.draw(st.integers(0, len(encoded) - 1))
            with pytest.raises(WireError):
                decode(cls, encoded[:end], version)

    check()


@pytest.mark.parametrize("code", [134, 900, 32767, -2, -32768])
def test_unknown_error_codes_are_kept(code):
    from dualwrite.wire.messages.end_txn import EndTxnResponse

    for version in range(6):
        data = encode(EndTxnResponse(error_code=code), version)
        assert decode(EndTxnResponse, data, version).error_code == code


def test_unknown_tags_in_nested_structs_are_skipped():
    """OffsetCommit v8 with a future field in each of its three structs."""
    from dualwrite.wire.messages.offset_commit import OffsetCommitRequest

    tag = b"\1\x63\1x"
    partition = struct.pack(">iqi", 1, 2, 3) + b"\2m" + tag
    topic = b"\2t" + b"\2" + partition + tag
    data = b"\2g" + struct.pack(">i", 5) + b"\1" + b"\0" + b"\2" + topic + tag
    message = decode(OffsetCommitRequest, data, 8)

    assert (message.group_id, message.generation_id_or_member_epoch) == ("g", 5)
    assert message.topics[0].partitions[0].committed_metadata == "m"
    assert encode(message, 8) == data.replace(tag, b"\0")
