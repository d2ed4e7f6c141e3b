"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the client's side, without channel binding."""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode

_DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NO_BINDING = b64encode(b"n,,").decode()
# A server that asks for more rounds than this only wants to keep the client busy.
_ROUNDS = re.compile("[0-9]{1,8}")
_ROUNDS_MIN = 4_096
_ROUNDS_MAX = 10_000_000


class ScramError(ValueError):
    """The server's message is not what the exchange allows, or the server has not proved itself."""


class ScramClient:
    """One exchange: `first()`, `final(answer)`, `verify(answer)`."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._digest = _DIGESTS[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Prove knowledge of the password, answering the server's nonce, salt and rounds."""
        text = _text(server_first)
        fields = _fields(text)
        nonce, rounds = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not extend ours")
        if not _ROUNDS.fullmatch(rounds) or not _ROUNDS_MIN <= int(rounds) <= _ROUNDS_MAX:
            raise ScramError(f"unacceptable iteration count {rounds!r}")
        salt = _decode(fields.get("s", ""))
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, int(rounds))
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c={_NO_BINDING},r={nonce}"
        auth_message = f"{self._first_bare},{text},{without_proof}".encode()
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = self._hmac(stored_key, auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check that the server knows the password too."""
        fields = _fields(_text(server_final))
        if "e" in fields:
            raise ScramError(f"the server refuses: {fields['e']}")
        if not hmac.compare_digest(_decode(fields.get("v", "")), self._server_signature):
            raise ScramError("the server has not proved that it knows the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._digest).digest()


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("the server's message is not UTF-8") from error


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise ScramError("the server's message holds no valid base64") from error
