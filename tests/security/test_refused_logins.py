"""Each client is refused what it must be refused, nothing recorded helps, and no log has a secret."""

import base64
import itertools
import logging
import socket
import struct

import pytest

from dualwrite.broker import Broker
from dualwrite.broker.security.credentials import Mechanism
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.security.authority import Authority
from tests.security.logins import CLIENTS, IN, Login
from tests.servers.recording_proxy import RecordingProxy

PASSWORD = "canary-among-the-refused"
WRONG = f"wrong-{PASSWORD}"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ALL_MECHANISMS = ("PLAIN", *SCRAM)
# What these log of themselves is not ours to keep clean.
OTHERS = ("kafka", "aiokafka")


# Guesses at PLAIN passwords have a budget, which clients that go on trying use up.
REASONS = ("'unknown user or wrong password'", "'too many passwords to check at once'")


class Log(logging.Handler):
    """Everything that is logged, as it would be written."""

    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        if record.name.partition(".")[0] not in OTHERS:
            self.lines.append(self.format(record))


def forms(secret):
    """How a secret could stand in a log."""
    return {repr(secret)[2:-1], secret.hex(), base64.b64encode(secret).decode().rstrip("=")[:-1]}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def secretless():
    """Over all tests of this file: everything at DEBUG, and nothing of a secret in it."""
    root, log = logging.getLogger(), Log()
    level = root.level
    root.addHandler(log)
    root.setLevel(logging.DEBUG)
    secrets = [PASSWORD.encode()]
    yield secrets
    root.removeHandler(log)
    root.setLevel(level)

    said = "\n".join(log.lines)
    assert "authentication failed" in said
    assert "TLS handshake failed" in said
    assert len(secrets) > 1
    for form in set().union(*map(forms, secrets)):
        assert form not in said


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def opened(authority, tmp_path_factory, secretless):
    """Start a broker with other mechanisms or another certificate; its users' keys are secrets too."""
    numbers = itertools.count()
    started = []

    def start(mechanisms=ALL_MECHANISMS, *, certificate=None):
        users = tmp_path_factory.mktemp(f"users{next(numbers)}") / "users.toml"
        users.write_text(f'[users]\nalice = "{PASSWORD}"\n')
        users.chmod(0o600)
        location, key = certificate or authority.issue("localhost")
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
            "sasl.enabled.mechanisms": ",".join(mechanisms),
            "allow.plain.over.plaintext": "true",
            "users.file": str(users),
            "super.users": "User:alice;User:CN=alice,O=Wonderland",
            "ssl.certificate.location": str(location),
            "ssl.key.location": str(key),
            "ssl.ca.location": str(authority.ca),
            "ssl.client.auth": "required",
        }
        broker = Broker(settings=settings).start()
        started.append(broker)
        for credential in broker.node.users.credentials("alice"):
            secretless.extend([credential.stored_key, credential.server_key])
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture(scope="module")
def broker(opened):
    return opened()


def port(broker, listener):
    return next(spec.port for spec in broker.listeners if spec.name == listener)


@pytest.fixture(scope="module")
def alice(authority):
    """Her login, over TLS with a certificate of her own, which the listeners ask for."""
    certificate = authority.issue("alice", organization="Wonderland")

    def login(broker, protocol, mechanism=""):
        is_tls = protocol.endswith("SSL")
        return Login(
            f"127.0.0.1:{port(broker, protocol)}",
            protocol,
            mechanism,
            password=PASSWORD if mechanism else "",
            ca=authority.ca if is_tls else None,
            certificate=certificate if is_tls else None,
        )

    return login


def refused(client, login):
    """What a client says that is not let in."""
    said = CLIENTS[client](login(patience=2))
    assert said != IN
    return said


each_client = pytest.mark.parametrize("client", CLIENTS)


@each_client
@pytest.mark.parametrize("mechanism", ALL_MECHANISMS)
def test_wrong_password_and_unknown_user(broker, alice, client, mechanism, caplog):
    login = alice(broker, "SASL_SSL", mechanism)
    assert CLIENTS[client](login) == IN
    assert "authentication failed" not in caplog.text

    for wrong in (login(password=WRONG), login(user="nobody")):
        caplog.clear()
        assert PASSWORD not in refused(client, wrong)
        assert any(reason in caplog.text for reason in REASONS)


@each_client
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_weaker_mechanism_than_the_broker_has(opened, alice, client, mechanism):
    """It is refused at the handshake, before anything of the password is sent."""
    strict = opened(("SCRAM-SHA-512",))
    assert CLIENTS[client](alice(strict, "SASL_PLAINTEXT", "SCRAM-SHA-512")) == IN

    with RecordingProxy(port(strict, "SASL_PLAINTEXT")) as wire:
        login = alice(strict, "SASL_PLAINTEXT", mechanism)
        refused(client, login(address=f"127.0.0.1:{wire.port}"))

    sent = [frame for buffer in wire.sent for frame in frames(buffer)]
    assert ApiKey.SASL_HANDSHAKE in map(api_key, sent)
    assert ApiKey.SASL_AUTHENTICATE not in map(api_key, sent)
    assert PASSWORD.encode() not in b"".join(wire.sent)


@each_client
def test_expired_certificate_of_a_client(broker, alice, authority, client, caplog):
    login = alice(broker, "SSL")
    assert CLIENTS[client](login) == IN

    expired = authority.issue("alice", organization="Wonderland", is_expired=True)
    refused(client, login(certificate=expired))
    assert "TLS handshake failed reason='certificate has expired'" in caplog.text
    refused(client, login(certificate=None))
    assert "TLS handshake failed reason='PEER_DID_NOT_RETURN_A_CERTIFICATE'" in caplog.text


@each_client
@pytest.mark.parametrize(("protocol", "mechanism"), [("SSL", ""), ("SASL_SSL", "PLAIN")])
def test_expired_certificate_of_a_broker(opened, alice, authority, client, protocol, mechanism):
    posing = opened(certificate=authority.issue("localhost", is_expired=True))

    refused(client, alice(posing, protocol, mechanism))


def frames(recorded):
    """The frames of a connection, each with its length before it."""
    rest = bytes(recorded)
    while rest:
        (length,) = struct.unpack_from(">i", rest)
        yield rest[: 4 + length]
        rest = rest[4 + length :]


def api_key(frame):
    return struct.unpack_from(">h", frame, 4)[0]


def login_answer(request, answer):
    """The error code of a SaslAuthenticate response; from version 2 on tags come before it."""
    (version,) = struct.unpack_from(">h", request, 6)
    return struct.unpack_from(">h", answer, 8 + (version >= 2))[0]


class Replay:
    """Sends what was recorded, frame by frame, on a connection of its own."""

    def __init__(self, broker):
        address = ("127.0.0.1", port(broker, "SASL_PLAINTEXT"))
        self._socket = socket.create_connection(address, 10)

    def send(self, frame):
        """The answer with its length before it; empty if the connection was closed instead."""
        try:
            self._socket.sendall(frame)
            head = self._read(4)
            return head + self._read(struct.unpack(">i", head)[0]) if head else b""
        except ConnectionError:
            return b""

    def _read(self, count):
        found = b""
        while len(found) < count and (data := self._socket.recv(count - len(found))):
            found += data
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()


@pytest.fixture(params=list(itertools.product(CLIENTS, SCRAM)), ids="-".join)
def recorded(request, broker, alice):
    """The frames of a login that was let in, up to the one that proved the password."""
    client, mechanism = request.param
    with RecordingProxy(port(broker, "SASL_PLAINTEXT")) as wire:
        login = alice(broker, "SASL_PLAINTEXT", mechanism)
        assert CLIENTS[client](login(address=f"127.0.0.1:{wire.port}")) == IN
    for sent, answered in zip(wire.sent, wire.answered, strict=True):
        pairs = list(zip(frames(sent), frames(answered), strict=False))
        proofs = [n for n, (f, _) in enumerate(pairs) if api_key(f) == ApiKey.SASL_AUTHENTICATE]
        if len(proofs) == 2:
            assert login_answer(*pairs[proofs[1]]) == ErrorCode.NONE
            return [frame for frame, _ in pairs]
    raise AssertionError("no login was recorded")


def of(frames_of_login, key):
    return [frame for frame in frames_of_login if api_key(frame) == key]


def test_replayed_login_is_refused(broker, recorded):
    *_, first, proof = of(recorded, ApiKey.SASL_AUTHENTICATE)
    until_proof = recorded[: recorded.index(proof)]
    after = recorded[recorded.index(proof) + 1 :] or until_proof[:1]

    with Replay(broker) as replay:
        answers = [replay.send(frame) for frame in until_proof]
        assert login_answer(first, answers[until_proof.index(first)]) == ErrorCode.NONE
        answer = replay.send(proof)
        assert login_answer(proof, answer) == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert [replay.send(frame) for frame in after] == [b""] * len(after)


def test_replayed_proof_alone_is_refused(broker, recorded):
    (handshake,) = of(recorded, ApiKey.SASL_HANDSHAKE)
    proof = of(recorded, ApiKey.SASL_AUTHENTICATE)[-1]

    with Replay(broker) as replay:
        assert replay.send(handshake)
        answer = replay.send(proof)
        assert login_answer(proof, answer) == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert replay.send(proof) == b""


def test_replayed_proof_after_a_nonce_of_ones_own_is_refused(broker, recorded):
    """The proof is of the nonces that were exchanged, not of the password alone."""
    first, proof = of(recorded, ApiKey.SASL_AUTHENTICATE)
    (handshake,) = of(recorded, ApiKey.SASL_HANDSHAKE)
    changed = bytearray(first)
    last = first.index(b",r=") + 3
    changed[last] = ord("A") if changed[last] != ord("A") else ord("B")

    with Replay(broker) as replay:
        assert replay.send(handshake)
        assert login_answer(first, replay.send(bytes(changed))) == ErrorCode.NONE
        answer = replay.send(proof)
        assert login_answer(proof, answer) == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_requests_of_a_login_are_worth_nothing_without_it(broker, recorded):
    """Whatever the client asked once it was in is not answered to who skips the login."""
    proof = of(recorded, ApiKey.SASL_AUTHENTICATE)[-1]
    after = recorded[recorded.index(proof) + 1 :]
    assert after

    for frame in after:
        with Replay(broker) as replay:
            if api_key(frame) != ApiKey.API_VERSIONS:
                assert replay.send(frame) == b""


def test_keys_that_must_not_be_logged_are_the_users(broker):
    """The fixture looks for these; a change of what is stored must not make it look for nothing."""
    held = broker.node.users.credentials("alice")

    assert {credential.mechanism for credential in held} == set(Mechanism)
    assert all(len(c.stored_key) >= 32 and len(c.server_key) >= 32 for c in held)
