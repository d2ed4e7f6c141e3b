"""One connection without its socket: handshakes, answers in order, and nonsense."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.failures import UnsupportedByBroker
from dualwrite.flows.handshake import Credentials, handshake
from dualwrite.flows.link import Link
from dualwrite.flows.scram import ScramClient, ScramError
from dualwrite.flows.steps import Closed, Lost, Opened, Reply, Send
from dualwrite.wire.codec import WireError, decode
from dualwrite.wire.frame import FrameReader, decode_request_header, encode_response
from dualwrite.wire.messages import request_class
from dualwrite.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from dualwrite.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from dualwrite.wire.messages.sasl_handshake import SaslHandshakeResponse

OFFER = ApiVersionsResponse(
    api_keys=[ApiVersion(17, 0, 1), ApiVersion(26, 0, 5), ApiVersion(36, 0, 2)],
    finalized_features_epoch=4,
    finalized_features=[FinalizedFeatureKey("transaction.version", 2, 2)],
)


def requests_in(buffers):
    frames = FrameReader(10**6).feed(b"".join(buffers))
    found = []
    for frame in frames:
        header, offset = decode_request_header(frame)
        cls = request_class(header.api_key)
        found.append((header, decode(cls, frame, header.api_version, offset)))
    return found


def answer(link, buffers, response, version=None):
    ((header, _),) = requests_in(buffers)
    version = header.api_version if version is None else version
    return link.feed(encode_response(response, version, header.correlation_id))


def opened():
    link = Link(1, "me", handshake(None))
    events, _ = answer(link, link.start(100), OFFER)
    assert [type(e) for e in events] == [Opened]
    return link


def test_a_connection_begins_with_api_versions():
    link = Link(3, "me", handshake(None))
    buffers = link.start(100)
    ((header, request),) = requests_in(buffers)
    assert (header.api_key, header.client_id) == (18, "me")
    assert request.client_software_name == "dualwrite"

    (event,), more = answer(link, buffers, OFFER)

    assert more == []
    assert event.node == 3
    assert event.offer.versions[26] == (0, 5)
    assert event.offer.finalized == {"transaction.version": 2}
    assert link.is_open


@pytest.mark.parametrize("tail", [b"\0\0\0\0", b"\x01\x00\x12\x00\x00\x00\x02\x00\x00\x00\x00"])
def test_an_old_broker_is_asked_again_in_version_0(tail):
    link = Link(1, "me", handshake(None))
    link.start(100)
    body = b"\0\0\0\x01\0\x23" + tail
    events, buffers = link.feed(len(body).to_bytes(4, "big") + body)
    assert events == []
    ((header, _),) = requests_in(buffers)
    assert header.api_version == 0

    events, _ = answer(link, buffers, ApiVersionsResponse(api_keys=[ApiVersion(26, 0, 1)]))

    assert events[0].offer.versions == {26: (0, 1)}


def test_a_broker_that_refuses_to_say_what_it_speaks():
    link = Link(1, "me", handshake(None))
    with pytest.raises(UnsupportedByBroker):
        answer(link, link.start(100), ApiVersionsResponse(error_code=42))


def test_answers_belong_to_requests_by_their_order():
    link = opened()
    first = link.send(Send(1, EndTxnRequest("a", 1, 1, True), 5, "first", 10), 0)
    second = link.send(Send(1, EndTxnRequest("b", 2, 2, True), 5, "second", 10), 0)
    (a, _), (b, _) = requests_in([*first, *second])
    data = encode_response(EndTxnResponse(producer_id=1), 5, a.correlation_id)
    data += encode_response(EndTxnResponse(producer_id=2), 5, b.correlation_id)

    events = []
    for byte in data:  # as slowly as it can come
        events += link.feed(bytes([byte]))[0]

    assert [(e.token, e.response.producer_id) for e in events] == [("first", 1), ("second", 2)]
    assert all(type(e) is Reply for e in events)


def test_losing_the_connection_tells_everybody_who_waits():
    link = opened()
    link.send(Send(1, EndTxnRequest("a", 1, 1, True), 5, "first", 10), 5)
    link.send(Send(1, EndTxnRequest("b", 2, 2, True), 5, "second", 10), 6)
    assert link.deadline_ms() == 15
    error = ConnectionResetError()

    assert link.lose(error) == [Lost("first", error), Lost("second", error), Closed(1, error)]
    assert link.deadline_ms() is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02ab",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\0\0\0\x08\0\0\0\x63abcd",
        b"\0\0\0\x09\0\0\0\x02\0abcd",
    ],
)
def test_nonsense_is_an_error_of_the_wire(data):
    link = opened()
    link.send(Send(1, EndTxnRequest("a", 1, 1, True), 5, "first", 10), 0)

    with pytest.raises(WireError):
        link.feed(data)
    assert [type(e) for e in link.lose(ConnectionError())] == [Lost, Closed]


def test_an_answer_that_nobody_asked_for_is_an_error_of_the_wire():
    link = opened()
    with pytest.raises(WireError, match="nobody"):
        link.feed(encode_response(EndTxnResponse(), 5, 1))


def log_in(mechanism, *answers, password="pencil"):
    """Run the SASL part of a handshake; returns what the client sent."""
    credentials = Credentials(mechanism, "user", password, "rOprNGfwEbeRWgbNEkqO")
    flow = handshake(credentials)
    next(flow)
    sent = [flow.send(OFFER)]
    for answer in answers:
        sent.append(flow.send(answer))
    return sent


def test_plain_sends_name_and_password():
    sent = log_in("PLAIN", SaslHandshakeResponse(mechanisms=["PLAIN"]))

    assert sent[0].request.mechanism == "PLAIN"
    assert sent[1].request.auth_bytes == b"\0user\0pencil"


def test_a_mechanism_that_is_refused_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="SCRAM-SHA-512"):
        log_in("PLAIN", SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-512"]))


def test_a_login_that_is_refused_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="wrong"):
        log_in(
            "PLAIN",
            SaslHandshakeResponse(mechanisms=["PLAIN"]),
            SaslAuthenticateResponse(error_code=58, error_message="wrong"),
        )


def test_scram_agrees_with_the_example_of_rfc_7677():
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"

    final = client.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )

    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(
    "server_first",
    [
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=nonce,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
        b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999",
        b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=x",
        b"r=nonce1,s=!!,i=4096",
        b"\xff",
        b"",
    ],
)
def test_scram_refuses_a_server_that_plays_foul(server_first):
    with pytest.raises(ScramError):
        ScramClient("SCRAM-SHA-512", "user", "pencil", "nonce").final(server_first)


@pytest.mark.parametrize("final", [b"v=AAAA", b"e=invalid-proof", b"", b"v=!"])
def test_scram_refuses_a_server_that_does_not_know_the_password(final):
    client = ScramClient("SCRAM-SHA-512", "user", "pencil", "nonce")
    client.final(b"r=nonce1,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")

    with pytest.raises(ScramError):
        client.verify(final)


def test_scram_escapes_the_name_and_proves_by_the_stored_key():
    client = ScramClient("SCRAM-SHA-256", "a=b,c", "pw", "nonce")
    assert client.first() == b"n,,n=a=3Db=2Cc,r=nonce"
    salt = b"0123456789"
    server_first = f"r=nonceX,s={b64encode(salt).decode()},i=4096"

    final = client.final(server_first.encode()).decode()

    # What a server does, which keeps only the stored key.
    salted = hashlib.pbkdf2_hmac("sha256", b"pw", salt, 4096)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    without_proof, _, proof = final.rpartition(",p=")
    message = f"n=a=3Db=2Cc,r=nonce,{server_first},{without_proof}".encode()
    signature = hmac.digest(stored, message, "sha256")
    key = bytes(a ^ b for a, b in zip(b64decode(proof), signature, strict=True))
    assert hashlib.sha256(key).digest() == stored
