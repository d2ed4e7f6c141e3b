"""Who may use the console: a token from a private file, sessions, and tokens against forged posts."""

import hashlib
import hmac
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dualwrite.errors import ConfigurationError

SESSION_SECONDS: Final = 12 * 3600
SESSIONS_MAX: Final = 64
TOKEN_CHARS_MIN: Final = 16


def read_or_create_token(path: Path) -> str:
    """The login token in a file that only its owner can read; made if it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read_token(path)
    token = secrets.token_urlsafe(32)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")
    return token


def _read_token(path: Path) -> str:
    with path.open() as file:
        status = os.fstat(file.fileno())
        if stat.S_IMODE(status.st_mode) & 0o077 or not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path} holds a login token: others must not read it (0600)")
        token = file.read(1024).strip()
    if len(token) < TOKEN_CHARS_MIN:
        raise ConfigurationError(f"{path}: a token has at least {TOKEN_CHARS_MIN} characters")
    return token


class Access:
    """The token, the sessions opened with it, and the names under which the console is served.

    Sessions live in memory: a restart ends them. `hosts` are the values of the Host header that are
    answered; everything else may be a page of a stranger whose name was pointed at this machine.
    """

    def __init__(self, token: str, hosts: Iterable[str]) -> None:
        self._token = token.encode()
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, float] = {}
        self._lock = threading.Lock()
        self.hosts = frozenset(hosts)
        self.origins = frozenset(f"http://{host}" for host in self.hosts)

    @classmethod
    def on_loopback(cls, token: str, port: int) -> "Access":
        return cls(token, (f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")))

    def log_in(self, token: str) -> str | None:
        """Open a session, or None for a wrong token."""
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        session = secrets.token_urlsafe(32)
        now = time.monotonic()
        with self._lock:
            alive = [item for item in self._sessions.items() if item[1] > now]
            self._sessions = dict(alive[-(SESSIONS_MAX - 1) :])
            self._sessions[session] = now + SESSION_SECONDS
        return session

    def log_out(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def knows(self, session: str) -> bool:
        with self._lock:
            return self._sessions.get(session, 0.0) > time.monotonic()

    def form_token(self, cookie: str) -> str:
        """What a form must carry to be from a page that this cookie's owner was shown."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, cookie: str, token: str) -> bool:
        return hmac.compare_digest(self.form_token(cookie).encode(), token.encode())
