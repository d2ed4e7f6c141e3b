"""Who is at the other end of a connection: the SASL conversation as a state machine without IO.

    UNKNOWN -> handshake -> AGREED -> authenticate, 1 or 2 messages -> KNOWN -> handshake -> ...
                                       or else FAILED: answer, wait, close

Before KNOWN only ApiVersions, SaslHandshake and SaslAuthenticate are served. A connection that is
KNOWN may authenticate again (KIP-368), as the same principal by the same mechanism only; while it
does so, other requests are refused as before the first time. The principal never changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.security.credentials import Mechanism
from dualwrite.broker.security.errors import AuthenticationFailed, SecurityConfigError
from dualwrite.broker.security.plain import PLAIN, PasswordCheck
from dualwrite.broker.security.scram import ScramExchange
from dualwrite.broker.security.users import Users
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode

MECHANISMS: Final = (PLAIN, *(m.sasl_name for m in Mechanism))
"""What can be switched on for a listener."""

ALLOWED_BEFORE: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""What an unauthenticated connection may send; ApiVersions more than once, as Java does."""

MESSAGE_BYTES_MAX: Final = 8_192
"""No honest message of the mechanisms that are offered comes near this."""


class Stage(Enum):
    """How far a connection has come."""

    UNKNOWN = "no handshake yet"
    AGREED = "mechanism agreed, not authenticated"
    KNOWN = "authenticated"
    FAILED = "refused; to be closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeReply:
    """For SaslHandshake. The mechanisms are always listed: several clients insist on it."""

    error_code: ErrorCode
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticateReply:
    """For SaslAuthenticate."""

    error_code: ErrorCode
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class SaslService:
    """What the connections of one listener share. `new_nonce` gives 128 random bits as text.

    `max_reauth_ms` is Kafka's `connections.max.reauth.ms`: 0 means that a session never ends.
    """

    def __init__(
        self,
        *,
        users: Users,
        passwords: PasswordCheck,
        mechanisms: Iterable[str],
        new_nonce: Callable[[], str],
        max_reauth_ms: int = 0,
    ) -> None:
        self.users = users
        self.passwords = passwords
        self.mechanisms = tuple(mechanisms)
        self.new_nonce = new_nonce
        self.max_reauth_ms = max_reauth_ms
        unknown = [name for name in self.mechanisms if name not in MECHANISMS]
        if unknown or not self.mechanisms:
            raise SecurityConfigError(f"sasl.enabled.mechanisms: {unknown or 'none'} not supported")

    def connection(self) -> "SaslConnection":
        """The state machine for a new connection."""
        return SaslConnection(self)


class SaslConnection:
    """The SASL conversation of one connection."""

    def __init__(self, service: SaslService) -> None:
        self._service = service
        self.stage = Stage.UNKNOWN
        self.principal: str | None = None
        self.mechanism: str | None = None
        self.failure: str | None = None
        """Why the connection failed, for the audit log; without secrets."""
        self._exchange: ScramExchange | None = None
        self._agreed: str | None = None
        self._raw_tokens = False
        self._session_ends_ms: int | None = None

    def __repr__(self) -> str:
        return f"<SaslConnection {self.stage.name} {self.mechanism} {self.principal}>"

    @property
    def is_authenticated(self) -> bool:
        """Whether the principal is known and not just being proved again."""
        return self.stage is Stage.KNOWN

    @property
    def is_failed(self) -> bool:
        """Whether the reply just made must be followed by a delay and a close."""
        return self.stage is Stage.FAILED

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is for `raw_token`: a bare message, after SaslHandshake v0."""
        return self._raw_tokens and self.stage is Stage.AGREED

    def may_send(self, api_key: int, now: Now) -> bool:
        """Whether a request may be served now; if not, the connection is to be closed."""
        if self.stage is Stage.FAILED:
            return False
        if api_key in ALLOWED_BEFORE:
            return True
        return self.stage is Stage.KNOWN and not self.is_expired(now)

    def is_expired(self, now: Now) -> bool:
        """Whether the session has outlived what the client was told (KIP-368)."""
        return self._session_ends_ms is not None and now.steady_ms >= self._session_ends_ms

    def handshake(self, mechanism: str, version: int = 1) -> HandshakeReply:
        """Agree on a mechanism; with version 0 the messages that follow come without a header."""
        offered = self._service.mechanisms
        if self.stage not in (Stage.UNKNOWN, Stage.KNOWN):
            self._fail("a handshake came in the middle of authentication")
            return HandshakeReply(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        if mechanism not in offered:
            self._fail("a mechanism that is not enabled was asked for")
            return HandshakeReply(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered
            )
        if self.mechanism is not None and self.mechanism != mechanism:
            self._fail("the mechanism changed on re-authentication")
            return HandshakeReply(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        self.stage = Stage.AGREED
        self._agreed = mechanism
        self._raw_tokens = version == 0
        self._exchange = self._new_exchange(mechanism)
        return HandshakeReply(error_code=ErrorCode.NONE, mechanisms=offered)

    def authenticate(self, message: bytes, now: Now) -> AuthenticateReply:
        """Take the mechanism's next message and answer it; never raises for what clients send."""
        if self.stage is not Stage.AGREED or self._raw_tokens:
            return self._out_of_turn()
        return self._take(message, now)

    def raw_token(self, message: bytes, now: Now) -> bytes | None:
        """The answer to a frame that is a bare SASL message, or None: delay and close."""
        assert self.expects_raw_token
        reply = self._take(message, now)
        return None if reply.error_code else reply.auth_bytes

    def _take(self, message: bytes, now: Now) -> AuthenticateReply:
        assert self._agreed is not None
        try:
            if len(message) > MESSAGE_BYTES_MAX:
                raise AuthenticationFailed(self._agreed, "a message is too long")
            user, answer = self._prove(message, now)
            if user is not None:
                self._accept(f"User:{user}", self._agreed, now)
        except AuthenticationFailed as failure:
            self._fail(failure.reason)
            return AuthenticateReply(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(failure)
            )
        lifetime_ms = self._service.max_reauth_ms if user is not None else 0
        return AuthenticateReply(
            error_code=ErrorCode.NONE, auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )

    def _prove(self, message: bytes, now: Now) -> tuple[str | None, bytes]:
        if self._exchange is None:
            return self._service.passwords.authenticate(message, now), b""
        reply = self._exchange.receive(message)
        return reply.user, reply.message

    def _accept(self, principal: str, mechanism: str, now: Now) -> None:
        if self.principal is not None and self.principal != principal:
            # KIP-368: a connection that changed its principal could keep what the first one may do.
            raise AuthenticationFailed(mechanism, "the principal changed on re-authentication")
        self.principal = principal
        self.mechanism = mechanism
        self.stage = Stage.KNOWN
        self._exchange = None
        self._raw_tokens = False
        if self._service.max_reauth_ms > 0:
            self._session_ends_ms = now.steady_ms + self._service.max_reauth_ms

    def _out_of_turn(self) -> AuthenticateReply:
        self._fail("an authentication message came without a handshake")
        return AuthenticateReply(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake must come before SaslAuthenticate",
        )

    def _fail(self, reason: str) -> None:
        self.stage = Stage.FAILED
        self.failure = reason
        self._exchange = None

    def _new_exchange(self, mechanism: str) -> ScramExchange | None:
        scram = Mechanism.named(mechanism)
        if scram is None:
            return None
        return ScramExchange(scram, self._service.users.lookup, self._service.new_nonce())
