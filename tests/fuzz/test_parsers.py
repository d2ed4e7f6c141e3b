"""Strangers' bytes end in a value or in an error of ours, and take no more memory than they should."""

import struct
import tracemalloc
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualwrite.broker.groups.records import Kind
from dualwrite.wire.codec import decode
from dualwrite.wire.compression import Compression, compress
from dualwrite.wire.frame import encode_request, encode_response
from dualwrite.wire.message import WireError, schema_of
from dualwrite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.fuzz.samples import batch, damage, encoded, message_classes, requests, sample
from tests.fuzz.targets import TARGETS

FUZZ = settings(
    max_examples=1_500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SEEDS = st.integers(0, 2**32 - 1)

# Where nothing can be told from random bytes, this is what an honest peer would send.
HONEST = {
    "sasl_server": lambda r: (
        bytes([r.randrange(3)])
        + r.choice(
            (
                b"n,,n=ann,r=client\nc=biws,r=clientserver-1,p=" + b"A" * 44,
                b"\0ann\0wrong",
                b"n,a=bob,n=ann,r=x",
                b"y,,n=a=2Cb=3D,r=" + r.randbytes(9).hex().encode(),
            )
        )
    ),
    "sasl_client": lambda r: r.choice((b"r=nonce-more,s=c2FsdA==,i=4096\nv=AAAA", b"e=no\n")),
    "prepared_state": lambda r: f"{r.randrange(2**63)}:{r.randrange(2**15)}".encode(),
    "group_metadata": lambda r: b"CGMDv2:\1\0\0\0group\0member\0\1",
    "owner": lambda r: b"host/boot.1/12/345/abcd/pod-1",
    "record_batch": lambda r: batch(r) + batch(r),
    "frames": lambda r: struct.pack(">i", r.choice((0, 5, 10_000_000))) + r.randbytes(12),
    "shown_record": lambda r: "Zeichen ü€😀\0\x1b[31m".encode() * r.randrange(400),
}


def _request(random):
    cls, version = random.choice(requests())
    return encode_request(sample(cls, version, random), version, 7, "client")


def _response(random):
    responses = [one for one in message_classes() if not schema_of(one[0]).is_request]
    number = random.randrange(len(responses))
    cls, version = responses[number]
    frame = encode_response(sample(cls, version, random), version, 7)
    return number.to_bytes(2) + bytes(frame)


def _compressed(random):
    number = random.randrange(5)
    content = random.randbytes(20) * random.randrange(1, 60)
    return bytes([number]) + compress(number, content)


def _stored(random):
    kind = random.choice([0, *Kind])
    return struct.pack(">h", kind) + random.randbytes(random.randrange(90))


HONEST |= {
    "request_frame": _request,
    "response_frame": _response,
    "codec": _compressed,
    "stored_records": _stored,
}


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name):
    @FUZZ
    @given(st.binary(max_size=300))
    def check(data):
        TARGETS[name](data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_almost_right_bytes(name):
    @FUZZ
    @given(SEEDS)
    def check(seed):
        random = Random(seed)
        honest = HONEST[name](random)
        TARGETS[name](honest)
        TARGETS[name](damage(honest, random))

    check()


def test_every_message_of_every_version_is_read_back_and_survives_damage():
    random = Random(939)
    for cls, version in message_classes():
        data = encoded(cls, version, random)
        decode(cls, data, version)
        for _ in range(6):
            try:
                decode(cls, damage(data, random), version)
            except WireError:
                continue


def test_counts_that_lie_take_no_memory():
    random = Random(2018)
    for cls, version in message_classes():
        decode(cls, encoded(cls, version, random), version)  # compile first
    tracemalloc.start()
    try:
        for cls, version in message_classes():
            for lie in (
                b"\x7f\xff\xff\xff",
                b"\xff\xff\xff\xff\x07",
                b"\x7f\xff",
                b"\0\xff\xff\xff",
            ):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                for front in (0, 4, 12):
                    try:
                        decode(cls, bytes(front) + lie + bytes(64), version)
                    except WireError:
                        continue
                assert tracemalloc.get_traced_memory()[1] - before < 1 << 20, (cls, version, lie)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", [c for c in Compression if c])
def test_bombs_are_refused(compression):
    bomb = bytes([compression]) + compress(compression, bytes(8 << 20))
    tracemalloc.start()
    try:
        TARGETS["codec"](bomb)
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_login_message_of_any_size_is_bounded():
    for size in (8_000, 9_000, 60_000):
        TARGETS["sasl_server"](b"\0" + b"n,,n=" + b"a" * size + b",r=x")
    with pytest.raises(WireError):
        decode(SaslAuthenticateRequest, b"\x7f\xff\xff\xff" + bytes(10), 1)


@pytest.mark.parametrize("rounds", ["9" * 5000, "0", "-4096", "４０９６", "4096.0", "", "١٢٣٤"])
def test_rounds_of_a_hostile_broker_are_refused(rounds):
    from dualwrite.flows.scram import ScramClient, ScramError

    client = ScramClient("SCRAM-SHA-256", "ann", "secret", "nonce")
    with pytest.raises(ScramError):
        client.final(f"r=nonce-more,s=c2FsdA==,i={rounds}".encode())
