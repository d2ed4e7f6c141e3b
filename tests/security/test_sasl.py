"""The SASL conversation of a connection: order, outcomes, re-authentication, PLAIN."""

import contextlib
import itertools
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.broker.clock import Now
from dualwrite.broker.security.credentials import Mechanism, ScramCredential
from dualwrite.broker.security.errors import AuthenticationFailed, SecurityConfigError
from dualwrite.broker.security.plain import REMEMBERED_MAX, PasswordCheck, parse_plain
from dualwrite.broker.security.sasl import SaslConnection, SaslService, Stage
from dualwrite.broker.security.users import (
    Users,
    credential_removed,
    credential_set,
    secret_record,
)
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 calls deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.net.sasl.scram import ScramClient

PASSWORD = "canary-password"
T0 = Now(wall_ms=1_000_000, steady_ms=5_000)
ALL = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture
def users():
    store = Users()
    store.replay_meta(secret_record(bytes(range(32))))
    for user in ("alice", "bob"):
        for mechanism in Mechanism:
            credential = ScramCredential.derive(mechanism, PASSWORD, user.encode() * 4, 4096)
            store.replay_meta(credential_set(user, credential))
    return store


@pytest.fixture
def service(users):
    return service_of(users)


def service_of(users, mechanisms=ALL, max_reauth_ms=0, per_second=1000):
    numbers = itertools.count()
    return SaslService(
        users=users,
        passwords=PasswordCheck(users, b"k" * 32, per_second),
        mechanisms=mechanisms,
        new_nonce=lambda: f"nonce-number-{next(numbers):06}",
        max_reauth_ms=max_reauth_ms,
    )


def later(ms):
    return Now(wall_ms=T0.wall_ms + ms, steady_ms=T0.steady_ms + ms)


def log_in(connection, user="alice", mechanism="SCRAM-SHA-256", password=PASSWORD, now=T0):
    """A whole login; returns the last reply."""
    assert connection.handshake(mechanism).error_code == ErrorCode.NONE
    if mechanism == "PLAIN":
        return connection.authenticate(f"\0{user}\0{password}".encode(), now)
    client = ScramClient(user, password, mechanism)
    first = connection.authenticate(client.first_message(), now)
    assert first.error_code == ErrorCode.NONE
    assert first.session_lifetime_ms == 0
    assert not connection.is_authenticated
    client.process_server_first_message(first.auth_bytes)
    last = connection.authenticate(client.final_message(), now)
    if last.error_code == ErrorCode.NONE:
        client.process_server_final_message(last.auth_bytes)
    return last


@pytest.mark.parametrize("mechanism", ALL)
def test_login(service, mechanism):
    connection = service.connection()

    reply = log_in(connection, mechanism=mechanism)

    assert reply.error_code == ErrorCode.NONE
    assert connection.principal == "User:alice"
    assert connection.mechanism == mechanism
    assert all(connection.may_send(key, T0) for key in ApiKey)


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD)])
def test_refused_login(service, mechanism, user, password):
    connection = service.connection()

    reply = log_in(connection, user, mechanism, password)

    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert reply.error_message == f"authentication with {mechanism} failed"
    assert reply.auth_bytes == b""
    assert connection.is_failed
    assert connection.principal is None
    assert not any(connection.may_send(key, T0) for key in ApiKey)
    assert connection.failure == "unknown user or wrong password"


def test_only_three_requests_before_login(service):
    connection = service.connection()
    allowed = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}

    assert {key for key in ApiKey if connection.may_send(key, T0)} == allowed
    connection.handshake("SCRAM-SHA-256")
    assert {key for key in ApiKey if connection.may_send(key, T0)} == allowed


@pytest.mark.parametrize(
    ("mechanism", "code"),
    [
        ("SCRAM-SHA-256", ErrorCode.NONE),
        ("GSSAPI", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("scram-sha-256", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ("PLAIN", ErrorCode.UNSUPPORTED_SASL_MECHANISM),
    ],
)
def test_handshake_always_lists_the_enabled_mechanisms(users, mechanism, code):
    enabled = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    connection = service_of(users, mechanisms=enabled).connection()

    reply = connection.handshake(mechanism)

    assert reply.error_code == code
    assert reply.mechanisms == enabled
    assert connection.is_failed == (code != ErrorCode.NONE)


def test_authenticate_without_handshake(service):
    connection = service.connection()

    reply = connection.authenticate(b"\0alice\0" + PASSWORD.encode(), T0)

    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_failed


def test_authenticate_again_without_a_new_handshake(service):
    connection = service.connection()
    log_in(connection, mechanism="PLAIN")

    reply = connection.authenticate(b"\0bob\0" + PASSWORD.encode(), T0)

    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_failed


def test_second_handshake_in_the_middle(service):
    connection = service.connection()
    connection.handshake("SCRAM-SHA-256")

    assert connection.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_failed


def test_a_failed_connection_cannot_start_over(service):
    connection = service.connection()
    log_in(connection, password="wrong", mechanism="PLAIN")

    assert connection.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    reply = connection.authenticate(b"\0alice\0" + PASSWORD.encode(), T0)
    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.principal is None


def test_raw_messages_after_handshake_v0(service):
    connection = service.connection()
    connection.handshake("SCRAM-SHA-512", version=0)
    client = ScramClient("alice", PASSWORD, "SCRAM-SHA-512")
    assert connection.expects_raw_token

    client.process_server_first_message(connection.raw_token(client.first_message(), T0))
    client.process_server_final_message(connection.raw_token(client.final_message(), T0))

    assert not connection.expects_raw_token
    assert connection.principal == "User:alice"


def test_refused_raw_message_has_no_answer(service):
    connection = service.connection()
    connection.handshake("PLAIN", version=0)

    assert connection.raw_token(b"\0alice\0wrong", T0) is None
    assert connection.is_failed


def test_framed_message_after_handshake_v0_is_out_of_turn(service):
    connection = service.connection()
    connection.handshake("PLAIN", version=0)

    reply = connection.authenticate(b"\0alice\0" + PASSWORD.encode(), T0)

    assert reply.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.principal is None


def test_session_ends_and_is_renewed(users):
    """KIP-368."""
    connection = service_of(users, max_reauth_ms=1000).connection()
    assert log_in(connection).session_lifetime_ms == 1000
    assert connection.may_send(ApiKey.PRODUCE, later(999))
    assert not connection.may_send(ApiKey.PRODUCE, later(1000))
    assert connection.may_send(ApiKey.SASL_HANDSHAKE, later(1000))

    assert log_in(connection, now=later(1500)).session_lifetime_ms == 1000

    assert connection.may_send(ApiKey.PRODUCE, later(2499))
    assert not connection.may_send(ApiKey.PRODUCE, later(2500))


def test_other_requests_wait_for_the_end_of_reauthentication(service):
    connection = service.connection()
    log_in(connection)
    connection.handshake("SCRAM-SHA-256")

    assert not connection.may_send(ApiKey.PRODUCE, T0)
    assert not connection.is_authenticated


def test_reauthentication_keeps_the_principal(service):
    connection = service.connection()
    log_in(connection, "alice")

    reply = log_in(connection, "bob")

    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert connection.is_failed
    assert connection.principal == "User:alice"


def test_reauthentication_keeps_the_mechanism(service):
    connection = service.connection()
    log_in(connection, mechanism="SCRAM-SHA-512")

    assert connection.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert connection.is_failed


def test_failed_reauthentication_ends_the_connection(service):
    connection = service.connection()
    log_in(connection)

    log_in(connection, password="wrong")

    assert connection.is_failed
    assert not connection.may_send(ApiKey.PRODUCE, T0)


def test_messages_have_a_size_limit(service):
    connection = service.connection()
    connection.handshake("SCRAM-SHA-256")

    reply = connection.authenticate(b"n,,n=alice,r=" + b"x" * 10_000, T0)

    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("mechanisms", [[], ["GSSAPI"], ["PLAIN", "OAUTHBEARER"]], ids=str)
def test_mechanisms_that_do_not_exist_cannot_be_enabled(users, mechanisms):
    with pytest.raises(SecurityConfigError):
        service_of(users, mechanisms=mechanisms)


STEPS = st.one_of(
    st.tuples(st.just("handshake"), st.sampled_from([*ALL, "GSSAPI"]), st.sampled_from([0, 1])),
    st.tuples(st.just("message"), st.binary(max_size=40)),
    st.tuples(st.just("message"), st.sampled_from([b"\0alice\0bad", b"n,,n=alice,r=q", b"\0\0"])),
)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(steps=st.lists(STEPS, max_size=8))
def test_no_order_of_messages_without_the_password_logs_in(steps):
    store = Users()
    store.replay_meta(secret_record(bytes(32)))
    connection = SaslConnection(service_of(store))
    for step in steps:
        if step[0] == "handshake":
            connection.handshake(step[1], step[2])
        elif connection.expects_raw_token:
            connection.raw_token(step[1], T0)
        else:
            connection.authenticate(step[1], T0)

        assert connection.principal is None
        assert connection.stage is not Stage.KNOWN
        assert not connection.may_send(ApiKey.METADATA, T0)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"alice\0" + PASSWORD.encode(),
        b"\0alice\0",
        b"\0\0" + PASSWORD.encode(),
        b"bob\0alice\0" + PASSWORD.encode(),
        b"\0alice\0" + PASSWORD.encode() + b"\0",
        b"\0al\xffice\0" + PASSWORD.encode(),
        "\0al\u00adice\0canary-password".encode(),
    ],
)
def test_malformed_plain_messages(message):
    with pytest.raises(AuthenticationFailed) as failure:
        parse_plain(message)
    assert PASSWORD not in str(failure.value) + failure.value.reason


def test_plain_takes_its_own_authorization_id():
    assert parse_plain(b"alice\0alice\0p") == ("alice", "p")


def test_guesses_have_a_budget_that_known_passwords_do_not_need(users):
    check = PasswordCheck(users, b"k" * 32, derivations_per_second=2)
    right = b"\0alice\0" + PASSWORD.encode()
    assert check.authenticate(right, T0) == "alice"
    with pytest.raises(AuthenticationFailed, match="PLAIN"):
        check.authenticate(b"\0alice\0guess", T0)

    with pytest.raises(AuthenticationFailed) as failure:
        check.authenticate(b"\0bob\0" + PASSWORD.encode(), T0)
    assert failure.value.reason == "too many passwords to check at once"
    assert check.authenticate(right, T0) == "alice"
    assert check.authenticate(b"\0bob\0" + PASSWORD.encode(), later(500)) == "bob"


def test_a_changed_or_removed_credential_forgets_the_password(users):
    check = PasswordCheck(users, b"k" * 32)
    right = b"\0alice\0" + PASSWORD.encode()
    assert check.authenticate(right, T0) == "alice"

    changed = ScramCredential.derive(Mechanism.SCRAM_SHA_256, "other", b"salt" * 4, 4096)
    users.replay_meta(credential_set("alice", changed))
    with pytest.raises(AuthenticationFailed):
        check.authenticate(right, T0)
    assert check.authenticate(b"\0alice\0other", T0) == "alice"

    for mechanism in Mechanism:
        users.replay_meta(credential_removed("alice", mechanism))
    for password in (PASSWORD, "other"):
        with pytest.raises(AuthenticationFailed):
            check.authenticate(f"\0alice\0{password}".encode(), T0)


def test_an_unpreparable_password_is_a_wrong_password(users):
    check = PasswordCheck(users, b"k" * 32)

    with pytest.raises(AuthenticationFailed) as failure:
        check.authenticate(b"\0alice\0\x01", T0)
    assert failure.value.reason == "unknown user or wrong password"


def test_remembered_passwords_are_bounded_and_unreadable(users):
    check = PasswordCheck(users, b"k" * 32)
    check.authenticate(b"\0alice\0" + PASSWORD.encode(), T0)
    for number in range(REMEMBERED_MAX + 5):
        with contextlib.suppress(AuthenticationFailed):
            check.authenticate(f"\0user{number}\0x".encode(), T0)

    assert len(check._remembered) == 1
    assert PASSWORD.encode() not in b"".join(check._remembered)


def test_nothing_secret_in_repr(service):
    connection = service.connection()
    log_in(connection)

    assert repr(connection) == "<SaslConnection KNOWN SCRAM-SHA-256 User:alice>"
