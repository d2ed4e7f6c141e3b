"""The users that may log in with a password, and their salted keys.

Users come from two places. Those made by AlterUserScramCredentials (KIP-554) are journalled as meta
records and replayed. Those of the users file are read at every start, win over journalled ones of
the same name and cannot be altered by requests: whoever owns the machine owns them.

`replay_meta` is the only mutator of the journalled ones.
"""

import hmac
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from dualwrite.broker.security.credentials import (
    ITERATIONS_DEFAULT,
    SALT_BYTES,
    Mechanism,
    ScramCredential,
)
from dualwrite.broker.security.errors import SecurityConfigError

SET: Final = "scram_set"
REMOVE: Final = "scram_remove"
SECRET: Final = "scram_secret"
META_KINDS: Final = frozenset({SET, REMOVE, SECRET})
"""The kinds of meta record that belong to the users."""

SECRET_BYTES: Final = 32

_Credentials = dict[str, dict[Mechanism, ScramCredential]]


class Users:
    """Credentials by user and mechanism."""

    def __init__(self) -> None:
        self._journalled: _Credentials = {}
        self._filed: _Credentials = {}
        self._secret: bytes | None = None
        self._shapes: dict[Mechanism, Counter[tuple[int, int]]] = {m: Counter() for m in Mechanism}

    def __repr__(self) -> str:
        return f"<Users journalled={len(self._journalled)} filed={len(self._filed)}>"

    @property
    def has_secret(self) -> bool:
        """Whether `secret_record` has been journalled; a node does that once, before it listens."""
        return self._secret is not None

    def names(self) -> list[str]:
        """All users, sorted."""
        return sorted(self._journalled.keys() | self._filed.keys())

    def is_filed(self, user: str) -> bool:
        """Whether the user is defined by the users file, hence not to be altered by requests."""
        return user in self._filed

    def credentials(self, user: str) -> list[ScramCredential]:
        """What the user can log in with; empty for an unknown user."""
        return [credential for _, credential in sorted(self._of(user).items())]

    def journalled(self, user: str, mechanism: Mechanism) -> ScramCredential | None:
        """The credential that a request may remove."""
        return self._journalled.get(user, {}).get(mechanism)

    def lookup(self, user: str, mechanism: Mechanism) -> tuple[ScramCredential, bool]:
        """The user's credential and True, or a made-up one and False.

        The made-up one is computed in either case, so that the time taken says nothing.
        """
        made_up = self._made_up(user, mechanism)
        real = self._of(user).get(mechanism)
        return (made_up, False) if real is None else (real, True)

    def password_credential(self, user: str) -> tuple[ScramCredential, bool]:
        """The credential that PLAIN checks against: any that the user has, or a made-up one."""
        held = self.credentials(user)
        return self.lookup(user, held[0].mechanism if held else Mechanism.SCRAM_SHA_256)

    def salt(self, user: str, mechanism: Mechanism, length: int = SALT_BYTES) -> bytes:
        """A salt that stays the same for a user, and that nobody can foretell without the secret.

        Users of the file and users that do not exist get theirs here, hence look alike.
        """
        if self._secret is None:
            raise SecurityConfigError("the users' secret has not been journalled yet")
        label = f"{mechanism.sasl_name}\0{user}".encode()
        return hmac.digest(self._secret, b"salt\0" + label, "sha512")[:length]

    def _of(self, user: str) -> dict[Mechanism, ScramCredential]:
        return self._filed.get(user) or self._journalled.get(user, {})

    def _made_up(self, user: str, mechanism: Mechanism) -> ScramCredential:
        common = self._shapes[mechanism].most_common(1)
        length, iterations = common[0][0] if common else (SALT_BYTES, ITERATIONS_DEFAULT)
        salt = self.salt(user, mechanism, length)
        return ScramCredential(
            mechanism=mechanism,
            iterations=iterations,
            salt=salt,
            stored_key=mechanism.hmac(salt, b"no such user"),
            server_key=bytes(mechanism.key_bytes),
        )

    def replay_meta(self, record: Mapping[str, object]) -> None:
        """Apply one meta record of `META_KINDS`. A repeated record changes nothing."""
        match record["kind"]:
            case "scram_set":
                self._set(str(record["user"]), ScramCredential.decode(record))
            case "scram_remove":
                mechanism = Mechanism.named(str(record["mechanism"]))
                if mechanism is None:
                    raise SecurityConfigError("a record removes an unknown mechanism")
                self._remove(str(record["user"]), mechanism)
            case "scram_secret":
                self._secret = b64decode(str(record["secret"]), validate=True)
            case kind:
                raise SecurityConfigError(f"not a record of the users: {kind!r}")

    def meta_records(self) -> list[dict[str, object]]:
        """Records that give an empty store the journalled users of this one (for a checkpoint)."""
        records = [] if self._secret is None else [secret_record(self._secret)]
        for user, mechanisms in sorted(self._journalled.items()):
            records += [credential_set(user, mechanisms[m]) for m in sorted(mechanisms)]
        return records

    def load_filed(self, users: Mapping[str, Iterable[ScramCredential]]) -> None:
        """Replace the users of the file; see `users_file.read_users_file`."""
        for user in list(self._filed):
            for credential in self._filed.pop(user).values():
                self._count(credential, -1)
        for user, credentials in users.items():
            self._filed[user] = {credential.mechanism: credential for credential in credentials}
            for credential in self._filed[user].values():
                self._count(credential, 1)

    def _set(self, user: str, credential: ScramCredential) -> None:
        self._remove(user, credential.mechanism)
        self._journalled.setdefault(user, {})[credential.mechanism] = credential
        self._count(credential, 1)

    def _remove(self, user: str, mechanism: Mechanism) -> None:
        old = self._journalled.get(user, {}).pop(mechanism, None)
        if old is None:
            return
        self._count(old, -1)
        if not self._journalled[user]:
            del self._journalled[user]

    def _count(self, credential: ScramCredential, change: int) -> None:
        # A made-up credential has the commonest salt length and iteration count, so that neither
        # tells a user that exists from one that does not.
        shapes = self._shapes[credential.mechanism]
        shape = (min(len(credential.salt), 64), credential.iterations)
        shapes[shape] += change
        if not shapes[shape]:
            del shapes[shape]


def credential_set(user: str, credential: ScramCredential) -> dict[str, object]:
    """The meta record that gives a user a credential."""
    return {"kind": SET, "user": user, **credential.encode()}


def credential_removed(user: str, mechanism: Mechanism) -> dict[str, object]:
    """The meta record that takes a user's credential away."""
    return {"kind": REMOVE, "user": user, "mechanism": mechanism.sasl_name}


def secret_record(secret: bytes) -> dict[str, object]:
    """The meta record that holds the secret behind made-up salts; `SECRET_BYTES` random bytes."""
    if len(secret) != SECRET_BYTES:
        raise SecurityConfigError(f"the users' secret has {SECRET_BYTES} bytes")
    return {"kind": SECRET, "secret": b64encode(secret).decode()}
