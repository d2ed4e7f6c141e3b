"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without IO.

    client-first   n,,n=user,r=c-nonce
    server-first   r=c-nonce s-nonce,s=salt,i=iterations
    client-final   c=biws,r=c-nonce s-nonce,p=proof
    server-final   v=signature

Two messages, then the exchange is over, whatever the outcome. What is checked and why:
the nonce of the final message is the one that was sent (CVE-2024-56128), an authorization id is the
user's own name (CVE-2017-12610), the channel binding repeats the first message's header, keys are
compared in constant time (CVE-2021-38153). A user that does not exist goes through the same steps
with a made-up salt and fails at the same place as a wrong password.
"""

import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dualwrite.broker.security.credentials import Mechanism, ScramCredential
from dualwrite.broker.security.errors import AuthenticationFailed
from dualwrite.broker.security.saslprep import Unpreparable, saslprep

Lookup = Callable[[str, Mechanism], tuple[ScramCredential, bool]]
"""Gives the credential of a user, and whether it is real; made up for users that do not exist."""

# gs2-header and client-first-message-bare. The binding flag `p=` asks for channel binding, which is
# not offered; `m=` announces an extension that must be understood; neither matches.
_CLIENT_FIRST = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authzid>[^,\0]+))?,)"
    r"(?P<bare>n=(?P<user>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[^,\0]+)*))"
)
_CLIENT_FINAL = re.compile(
    r"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]=[^,\0]+)*),p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_ESCAPE = re.compile("=(2C|3D)?")


class _Step(Enum):
    FIRST = 1
    FINAL = 2
    OVER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramReply:
    """What to send; `user` is set when the exchange has proved who the client is."""

    message: bytes
    user: str | None = None


class ScramExchange:
    """One exchange. `nonce` is the server's part: printable, no comma, new for every exchange."""

    def __init__(self, mechanism: Mechanism, lookup: Lookup, nonce: str) -> None:
        assert re.fullmatch(r"[\x21-\x2b\x2d-\x7e]{16,}", nonce)
        self.mechanism = mechanism
        self._lookup = lookup
        self._server_nonce = nonce
        self._step = _Step.FIRST
        self._user = ""
        self._is_real = False
        self._credential: ScramCredential | None = None
        self._header = ""
        self._nonce = ""
        self._transcript = ""

    def __repr__(self) -> str:
        return f"<ScramExchange {self.mechanism.sasl_name} {self._step.name}>"

    def receive(self, message: bytes) -> ScramReply:
        """Take the client's next message; `AuthenticationFailed` ends the exchange."""
        step, self._step = self._step, _Step.OVER
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._failed("a message is not UTF-8") from None
        match step:
            case _Step.FIRST:
                reply = self._first(text)
                self._step = _Step.FINAL
                return reply
            case _Step.FINAL:
                return self._final(text)
            case _Step.OVER:
                raise self._failed("a message came after the end of the exchange")

    def _first(self, text: str) -> ScramReply:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise self._failed("the first message is malformed")
        if "tokenauth=true" in found["extensions"].split(","):
            raise self._failed("delegation tokens are not supported")
        user = self._name(found["user"])
        if found["authzid"] is not None and self._name(found["authzid"]) != user:
            raise self._failed("the authorization id is not the user's own name")
        self._user = user
        self._credential, self._is_real = self._lookup(user, self.mechanism)
        self._header = found["header"]
        self._nonce = found["nonce"] + self._server_nonce
        salt = b64encode(self._credential.salt).decode()
        server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._transcript = f"{found['bare']},{server_first}"
        return ScramReply(message=server_first.encode())

    def _final(self, text: str) -> ScramReply:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise self._failed("the final message is malformed")
        if found["binding"] != b64encode(self._header.encode()).decode():
            raise self._failed("the channel binding differs from the first message")
        if not hmac.compare_digest(found["nonce"], self._nonce):
            raise self._failed("the nonce is not the one of this exchange")
        try:
            proof = b64decode(found["proof"], validate=True)
        except Base64Error:
            raise self._failed("the proof is not base64") from None
        if len(proof) != self.mechanism.key_bytes:
            raise self._failed("the proof has the wrong length")
        if b64encode(proof).decode() != found["proof"]:
            # Unused bits in the last character would give one proof several spellings.
            raise self._failed("the proof is not canonical base64")
        return self._verify(proof, f"{self._transcript},{found['unproven']}".encode())

    def _verify(self, proof: bytes, transcript: bytes) -> ScramReply:
        credential = self._credential
        assert credential is not None
        signature = self.mechanism.hmac(credential.stored_key, transcript)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_proved = hmac.compare_digest(self.mechanism.hash(client_key), credential.stored_key)
        if not (is_proved and self._is_real):
            raise self._failed("unknown user or wrong password")
        verifier = b64encode(self.mechanism.hmac(credential.server_key, transcript))
        return ScramReply(message=b"v=" + verifier, user=self._user)

    def _name(self, quoted: str) -> str:
        """The name behind `=2C` and `=3D`.

        A name must come prepared: mapping it here would let two spellings be one principal.
        """
        if any(not found[1] for found in _ESCAPE.finditer(quoted)):
            raise self._failed("a name has a stray =")
        name = _ESCAPE.sub(lambda found: "," if found[1] == "2C" else "=", quoted)
        try:
            if saslprep(name) == name:
                return name
        except Unpreparable as error:
            raise self._failed(f"a name cannot be prepared: {error}") from None
        raise self._failed("a name is not in its prepared form")

    def _failed(self, reason: str) -> AuthenticationFailed:
        return AuthenticationFailed(self.mechanism.sasl_name, reason)
