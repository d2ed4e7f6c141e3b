"""PLAIN (RFC 4616): the client sends its password; the broker checks it against salted keys.

Deriving the keys costs about 15 ms of the thread that runs the broker, and anybody can ask for it.
So a password that was right once is remembered as a keyed digest and is checked in microseconds,
and all other checks share a budget per second: a flood of guesses can stop neither the broker nor
those who are known to it.
"""

import hashlib
import hmac
from collections import OrderedDict
from typing import Final

from dualwrite.broker.clock import Now
from dualwrite.broker.security.credentials import ScramCredential
from dualwrite.broker.security.errors import AuthenticationFailed
from dualwrite.broker.security.saslprep import Unpreparable, saslprep
from dualwrite.broker.security.users import Users

PLAIN: Final = "PLAIN"
DERIVATIONS_PER_SECOND: Final = 20
REMEMBERED_MAX: Final = 1_024


class PasswordCheck:
    """Checks passwords for all connections. `key` is random and lives with the process."""

    def __init__(
        self, users: Users, key: bytes, derivations_per_second: int = DERIVATIONS_PER_SECOND
    ) -> None:
        self._users = users
        self._key = key
        self._per_second = derivations_per_second
        self._budget = float(derivations_per_second)
        self._filled_ms = 0
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    def authenticate(self, message: bytes, now: Now) -> str:
        """The user that `message` names and proves to be; raises `AuthenticationFailed`."""
        user, password = parse_plain(message)
        credential, is_real = self._users.password_credential(user)
        digest = self._digest(user, password, credential)
        if is_real and digest in self._remembered:
            self._remembered.move_to_end(digest)
            return user
        if not self._may_derive(now):
            raise AuthenticationFailed(PLAIN, "too many passwords to check at once")
        try:
            is_right = credential.is_of(password)
        except Unpreparable:
            is_right = False
        if not (is_right and is_real):
            raise AuthenticationFailed(PLAIN, "unknown user or wrong password")
        self._remembered[digest] = None
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return user

    def _digest(self, user: str, password: str, credential: ScramCredential) -> bytes:
        # The stored key is part of it: a changed or removed credential forgets the password.
        keyed = hashlib.blake2b(key=self._key, digest_size=32)
        for part in user.encode(), password.encode(), credential.stored_key:
            keyed.update(len(part).to_bytes(4, "big") + part)
        return keyed.digest()

    def _may_derive(self, now: Now) -> bool:
        passed_ms = max(0, now.steady_ms - self._filled_ms)
        self._filled_ms = now.steady_ms
        self._budget = min(self._per_second, self._budget + passed_ms * self._per_second / 1000)
        if self._budget < 1:
            return False
        self._budget -= 1
        return True


def parse_plain(message: bytes) -> tuple[str, str]:
    """The user and password of `[authzid] NUL user NUL password`; raises `AuthenticationFailed`."""
    parts = message.split(b"\0")
    if len(parts) != 3:
        raise AuthenticationFailed(PLAIN, "the message does not have three parts")
    authzid, user, password = parts
    if not user or not password:
        raise AuthenticationFailed(PLAIN, "the user or the password is empty")
    # CVE-2017-12610: nobody acts for somebody else.
    if authzid and not hmac.compare_digest(authzid, user):
        raise AuthenticationFailed(PLAIN, "the authorization id is not the user's own name")
    try:
        name, secret = user.decode(), password.decode()
        if saslprep(name) != name:
            raise AuthenticationFailed(PLAIN, "a name is not in its prepared form")
    except (UnicodeDecodeError, Unpreparable):
        raise AuthenticationFailed(PLAIN, "the message cannot be prepared") from None
    return name, secret
