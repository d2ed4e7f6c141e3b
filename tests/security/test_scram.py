"""SCRAM against the RFC's vectors, two foreign clients, and attackers."""

import contextlib
import hashlib
import re
import warnings
from base64 import b64decode, b64encode

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dualwrite.broker.security.credentials import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MIN,
    Mechanism,
    ScramCredential,
)
from dualwrite.broker.security.errors import AuthenticationFailed
from dualwrite.broker.security.scram import ScramExchange, ScramReply
from dualwrite.broker.security.users import Users, credential_set, secret_record

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl.scram import ScramClient

NONCE = "server-nonce-0123456789"
PASSWORD = "canary-password"


@pytest.fixture(scope="module")
def users():
    store = Users()
    store.replay_meta(secret_record(bytes(range(32))))
    for user in ("alice", "mallory"):
        for mechanism in Mechanism:
            credential = ScramCredential.derive(mechanism, PASSWORD, user.encode() * 4, 4096)
            store.replay_meta(credential_set(user, credential))
    return store


def converse(client, exchange):
    """Run kafka-python's client against the exchange; returns the user that was proved."""
    first = exchange.receive(client.first_message())
    assert first.user is None
    client.process_server_first_message(first.message)
    final = exchange.receive(client.final_message())
    client.process_server_final_message(final.message)
    return final.user


@pytest.mark.parametrize(
    ("mechanism", "iterations", "salt", "server_nonce", "client_first", "final", "verifier"),
    [
        pytest.param(
            Mechanism.SCRAM_SHA_256,
            4096,
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
            id="RFC 7677",
        )
    ],
)
def test_rfc_vector(mechanism, iterations, salt, server_nonce, client_first, final, verifier):
    credential = ScramCredential.derive(mechanism, "pencil", b64decode(salt), iterations)
    exchange = ScramExchange(mechanism, lambda user, _: (credential, user == "user"), server_nonce)

    first = exchange.receive(client_first.encode())
    last = exchange.receive(final.encode())

    assert first.message.decode() == f"r=rOprNGfwEbeRWgbNEkqO{server_nonce},s={salt},i=4096"
    assert last == ScramReply(message=verifier.encode(), user="user")


@pytest.mark.parametrize("mechanism", Mechanism)
def test_kafka_python_logs_in(users, mechanism):
    exchange = ScramExchange(mechanism, users.lookup, NONCE)

    assert converse(ScramClient("alice", PASSWORD, mechanism.sasl_name), exchange) == "alice"


@pytest.mark.parametrize("mechanism", Mechanism)
def test_aiokafka_logs_in_with_a_name_that_needs_quoting(mechanism):
    store = Users()
    store.replay_meta(secret_record(bytes(32)))
    name = "CN=a,O=b"
    store.replay_meta(
        credential_set(name, ScramCredential.derive(mechanism, PASSWORD, b"salt" * 4, 4096))
    )
    client = ScramAuthenticator(
        loop=None,
        sasl_plain_username=name,
        sasl_plain_password=PASSWORD,
        sasl_mechanism=mechanism.sasl_name,
    )
    exchange = ScramExchange(mechanism, store.lookup, NONCE)

    first = exchange.receive(client.first_message().encode())
    client.process_server_first_message(first.message.decode())
    final = exchange.receive(client.final_message().encode())
    client.process_server_final_message(final.message.decode())

    assert final.user == name


def test_wrong_password_and_unknown_user_fail_alike(users):
    """Same number of messages, same shape of the first answer, same words at the end."""
    told = []
    for name, password in (("alice", "wrong"), ("nobody", PASSWORD)):
        client = ScramClient(name, password, "SCRAM-SHA-256")
        exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)
        first = exchange.receive(client.first_message())
        client.process_server_first_message(first.message)
        with pytest.raises(AuthenticationFailed) as failure:
            exchange.receive(client.final_message())
        found = re.fullmatch(
            r"r=\S{32}server-nonce-0123456789,s=(\S+),i=(\d+)", first.message.decode()
        )
        told.append((len(b64decode(found[1])), found[2], str(failure.value), failure.value.reason))

    lengths = {len(b"alice" * 4), len(b"mallory" * 4)}
    assert told[0][1:] == told[1][1:]
    assert told[0][0] in lengths
    assert told[1][0] in lengths


def test_made_up_salts_stay_the_same_differ_by_user_and_need_the_secret(users):
    other = Users()
    other.replay_meta(secret_record(bytes(32)))
    mechanism = Mechanism.SCRAM_SHA_256

    salt = users.lookup("nobody", mechanism)[0].salt

    assert salt == users.lookup("nobody", mechanism)[0].salt
    assert salt != users.lookup("nobody2", mechanism)[0].salt
    assert salt != users.lookup("nobody", Mechanism.SCRAM_SHA_512)[0].salt
    assert salt != other.lookup("nobody", mechanism)[0].salt[: len(salt)]


def test_the_keys_of_a_made_up_credential_do_not_log_in():
    """Even whoever knew how it is made up is not a user."""
    store = Users()
    store.replay_meta(secret_record(bytes(32)))
    password_of_nobody = ScramCredential.derive(Mechanism.SCRAM_SHA_256, "x", b"salt" * 6, 4096)
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, lambda *_: (password_of_nobody, False), NONCE)

    with pytest.raises(AuthenticationFailed):
        converse(ScramClient("nobody", "x", "SCRAM-SHA-256"), exchange)


def begun(users, header="n,,", user="alice", exchange_nonce=NONCE):
    """A client that has had its first answer, and the exchange that gave it."""
    client = ScramClient("alice", PASSWORD, "SCRAM-SHA-256")
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, exchange_nonce)
    bare = client.first_message()[3:].decode()
    first = exchange.receive(header.encode() + bare.encode())
    client.process_server_first_message(first.message)
    return client, exchange


def test_a_final_message_with_another_nonce_is_refused(users):
    """CVE-2024-56128. The proof is made over the changed message: only the nonce is wrong."""
    client = ScramClient("alice", PASSWORD, "SCRAM-SHA-256")
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)
    first = exchange.receive(client.first_message())
    forged = first.message.replace(NONCE.encode(), b"attackers-own-nonce")
    client.process_server_first_message(forged)

    with pytest.raises(AuthenticationFailed, match="SCRAM-SHA-256") as failure:
        exchange.receive(client.final_message())
    assert "nonce" in failure.value.reason


def test_a_replayed_final_message_is_refused_in_the_next_exchange(users):
    client, exchange = begun(users)
    recorded_final = client.final_message()
    assert exchange.receive(recorded_final).user == "alice"

    again = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, "another-nonce-9876543210")
    recorded_first = b"n,,n=alice,r=" + client.nonce[: -len(NONCE)]
    again.receive(recorded_first)
    with pytest.raises(AuthenticationFailed) as failure:
        again.receive(recorded_final)
    assert "nonce" in failure.value.reason


def test_nothing_is_taken_after_success_or_failure(users):
    client, exchange = begun(users)
    exchange.receive(client.final_message())
    with pytest.raises(AuthenticationFailed):
        exchange.receive(client.final_message())

    client, exchange = begun(users)
    with pytest.raises(AuthenticationFailed):
        exchange.receive(b"garbage")
    with pytest.raises(AuthenticationFailed) as failure:
        exchange.receive(client.final_message())
    assert "after the end" in failure.value.reason


def test_own_authorization_id_is_accepted_and_a_foreign_one_is_not(users):
    """CVE-2017-12610."""
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)
    with pytest.raises(AuthenticationFailed) as failure:
        exchange.receive(b"n,a=mallory,n=alice,r=abcdef")
    assert "authorization id" in failure.value.reason

    client = ScramClient("alice", PASSWORD, "SCRAM-SHA-256")
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)
    header = b"n,a=alice,"
    first = exchange.receive(header + client.first_message()[3:])
    # kafka-python signs the header it always sends; the exchange must notice the difference.
    client.process_server_first_message(first.message)
    with pytest.raises(AuthenticationFailed) as failure:
        exchange.receive(client.final_message())
    assert "channel binding" in failure.value.reason


def test_own_authorization_id_with_its_own_binding_logs_in(users):
    """A client by hand, since no Kafka client sends an authorization id."""
    mechanism = Mechanism.SCRAM_SHA_512
    exchange = ScramExchange(mechanism, users.lookup, NONCE)
    first = exchange.receive(b"y,a=alice,n=alice,r=abcdef").message.decode()
    salt = b64decode(re.search("s=([^,]+)", first)[1])
    binding = b64encode(b"y,a=alice,").decode()
    unproven = f"c={binding},r=abcdef{NONCE}"
    transcript = f"n=alice,r=abcdef,{first},{unproven}".encode()
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), salt, 4096)
    client_key = mechanism.hmac(salted, b"Client Key")
    signature = mechanism.hmac(mechanism.hash(client_key), transcript)
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()

    assert exchange.receive(f"{unproven},p={proof}".encode()).user == "alice"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,r=abc,n=alice",
        b"n,,n=al=ice,r=abc",
        b"n,,n=al=2cice,r=abc",
        b"n,,n=al\0ice,r=abc",
        b"n,,n=al\x01ice,r=abc",
        b"n,,n=alice,r=ab\x7fc",
        b"n,,n=alice,r=ab c",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"p=tls-unique,,n=alice,r=abc",
        b"q,,n=alice,r=abc",
        b"n,alice,n=alice,r=abc",
        b"n,,n=\xff\xfe,r=abc",
        "n,,n=al\u00adice,r=abc".encode(),
        "n,,n=\u2168,r=abc".encode(),
        "n,,n=\u06271,r=abc".encode(),
    ],
)
def test_malformed_first_messages(users, message):
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)

    with pytest.raises(AuthenticationFailed):
        exchange.receive(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m[:-4],
        lambda m: m + b"=",
        lambda m: m.replace(b",p=", b",p=AAAA"),
        lambda m: m.replace(b"c=biws", b"c=eSws"),
        lambda m: m.replace(b"c=biws", b"c="),
        lambda m: m.replace(b",p=", b",q="),
        lambda m: m.replace(b"c=biws,", b""),
        lambda m: m + b",x=y",
        lambda m: b"\xff" + m,
    ],
)
def test_malformed_final_messages(users, change):
    client, exchange = begun(users)

    with pytest.raises(AuthenticationFailed):
        exchange.receive(change(client.final_message()))


@settings(max_examples=300, deadline=None, print_blob=True)
@given(
    messages=st.lists(st.binary(max_size=80) | st.from_regex(r"[nyp],(a=.)?,n=.*,r=.*"), max_size=3)
)
@example(messages=[b"n,,n=alice,r=x", b"c=biws,r=x,p=AAAA"])
def test_only_typed_errors_whatever_arrives(users, messages):
    exchange = ScramExchange(Mechanism.SCRAM_SHA_256, users.lookup, NONCE)
    for message in messages:
        data = message if isinstance(message, bytes) else message.encode("utf-8", "replace")
        with contextlib.suppress(AuthenticationFailed):
            assert exchange.receive(data).user is None


def test_no_changed_bit_of_the_final_message_passes(users):
    length = len(begun(users)[0].final_message())
    for bit in range(length * 8):
        client, exchange = begun(users)
        final = bytearray(client.final_message())
        final[bit // 8] ^= 1 << bit % 8

        with pytest.raises(AuthenticationFailed):
            exchange.receive(bytes(final))


def test_nothing_secret_is_shown(users):
    client, exchange = begun(users)
    credential = users.credentials("alice")[0]
    shown = " ".join([repr(users), repr(exchange), repr(credential), str(credential)])
    secrets = [credential.salt, credential.stored_key, credential.server_key, client.nonce]

    for secret in secrets:
        assert secret.hex() not in shown
        assert b64encode(secret).decode() not in shown
        assert repr(secret) not in shown
    assert PASSWORD not in shown
    assert ITERATIONS_DEFAULT == 16_384
    assert ITERATIONS_MIN == 4_096
