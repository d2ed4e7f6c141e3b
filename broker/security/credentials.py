"""What the broker keeps of a password: salted keys from which it cannot be had back (RFC 5802).

StoredKey lets the broker check a client's proof, ServerKey lets it prove itself to the client.
Neither is enough to log in. They are kept out of `repr`, so no log line can show them.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from dualwrite.broker.security.errors import SecurityConfigError
from dualwrite.broker.security.saslprep import saslprep

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
ITERATIONS_DEFAULT: Final = 16_384
"""Kafka's bounds; its default is the minimum, ours the maximum (a client pays about 15 ms once)."""

SALT_BYTES: Final = 24


class Mechanism(IntEnum):
    """The SCRAM mechanisms, by Kafka's numbers in the credential requests (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in SaslHandshake."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name that `hashlib` has for the hash."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The length of all keys and proofs."""
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64

    @classmethod
    def named(cls, sasl_name: str) -> "Mechanism | None":
        """The mechanism that a client asks for by name, if it is one of SCRAM's."""
        return next((m for m in cls if m.sasl_name == sasl_name), None)

    def hmac(self, key: bytes, message: bytes) -> bytes:
        """HMAC with the mechanism's hash."""
        return hmac.digest(key, message, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """The mechanism's hash."""
        return hashlib.new(self.hash_name, data).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What is stored for one user and mechanism."""

    mechanism: Mechanism
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def from_salted(
        cls, mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> "ScramCredential":
        """The credential for a password that was salted elsewhere (an admin client, KIP-554)."""
        client_key = mechanism.hmac(salted_password, b"Client Key")
        return cls(
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            stored_key=mechanism.hash(client_key),
            server_key=mechanism.hmac(salted_password, b"Server Key"),
        )

    @classmethod
    def derive(
        cls, mechanism: Mechanism, password: str, salt: bytes, iterations: int
    ) -> "ScramCredential":
        """The credential for a password; slow on purpose. Raises `Unpreparable`."""
        prepared = saslprep(password).encode()
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, prepared, salt, iterations)
        return cls.from_salted(mechanism, salted, salt, iterations)

    def is_of(self, password: str) -> bool:
        """Whether `password` gives this credential; equally slow for yes and no."""
        other = ScramCredential.derive(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(other.stored_key, self.stored_key)

    def encode(self) -> dict[str, object]:
        """The credential as a JSON-able value."""
        return {
            "mechanism": self.mechanism.sasl_name,
            "iterations": self.iterations,
            "salt": b64encode(self.salt).decode(),
            "stored_key": b64encode(self.stored_key).decode(),
            "server_key": b64encode(self.server_key).decode(),
        }

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> "ScramCredential":
        """The inverse of `encode`, strict; raises `SecurityConfigError` without showing a value."""
        mechanism = Mechanism.named(str(value.get("mechanism")))
        if mechanism is None:
            raise SecurityConfigError("a credential needs a SCRAM mechanism")
        iterations = value.get("iterations")
        if type(iterations) is not int or not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SecurityConfigError(
                f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}"
            )
        credential = cls(
            mechanism=mechanism,
            iterations=iterations,
            salt=_bytes(value, "salt"),
            stored_key=_bytes(value, "stored_key"),
            server_key=_bytes(value, "server_key"),
        )
        if {len(credential.stored_key), len(credential.server_key)} != {mechanism.key_bytes}:
            raise SecurityConfigError(f"the keys must have {mechanism.key_bytes} bytes")
        return credential


def _bytes(value: Mapping[str, object], name: str) -> bytes:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise SecurityConfigError(f"{name} is missing from a credential")
    try:
        return b64decode(text, validate=True)
    except Base64Error:
        # The cause would show the text.
        raise SecurityConfigError(f"{name} is not base64") from None
