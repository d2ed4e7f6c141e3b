"""SaslHandshake (17) chooses the SASL mechanism (KIP-43)."""

from dualwrite.wire.message import STRING, array, int16, request, response, string


@request(17, "0-1")
class SaslHandshakeRequest:
    mechanism: str = string()


@response(17, "0-1")
class SaslHandshakeResponse:
    error_code: int = int16()
    mechanisms: list[str] = array(STRING)
