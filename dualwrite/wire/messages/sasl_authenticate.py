"""SaslAuthenticate (36) carries one step of a SASL exchange (KIP-152)."""

from dualwrite.wire.message import binary, int16, int64, request, response, string


@request(36, "0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = binary()


@response(36, "0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64("1+", ignorable=True)
