"""The users file: TOML, readable by its owner only.

    [users]
    alice = "a password"

    [users.bob]
    password = "another"
    mechanisms = ["SCRAM-SHA-512"]

    [[users.carol.credentials]]
    mechanism = "SCRAM-SHA-256"
    iterations = 16384
    salt = "base64"
    stored_key = "base64"
    server_key = "base64"

A password is turned into salted keys while the file is read and is kept nowhere.
`dualwrite.broker.security.users_file.render_credential` prints the third form.
"""

import logging
import os
import stat
import tomllib
from pathlib import Path

from dualwrite.broker.security.credentials import (
    ITERATIONS_DEFAULT,
    Mechanism,
    ScramCredential,
)
from dualwrite.broker.security.errors import SecurityConfigError
from dualwrite.broker.security.saslprep import Unpreparable, name_problem, saslprep
from dualwrite.broker.security.users import Users

logger = logging.getLogger(__name__)


def read_users_file(path: Path, users: Users) -> int:
    """Load the file's users into `users`, replacing those of an earlier reading; returns how many.

    Raises `SecurityConfigError`, which never shows a password, and leaves `users` as it was.
    """
    filed = parse_users(_read_private(path), users)
    users.load_filed(filed)
    logger.info("users file read path=%s users=%d", path, len(filed))
    return len(filed)


def parse_users(text: str, users: Users) -> dict[str, list[ScramCredential]]:
    """The credentials that the text of a users file defines; `users` gives the salts."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # The parser's message and the chain behind it can quote the line with the password.
        raise SecurityConfigError("the users file is not valid TOML") from None
    unknown = document.keys() - {"users"}
    if unknown:
        raise SecurityConfigError(f"the users file has unknown tables: {sorted(unknown)}")
    table = document.get("users", {})
    if not isinstance(table, dict):
        raise SecurityConfigError("users is a table")
    return {user: _credentials(user, entry, users) for user, entry in table.items()}


def render_credential(user: str, credential: ScramCredential) -> str:
    """The lines for the users file that hold salted keys instead of a password."""
    quoted = user.replace("\\", "\\\\").replace('"', '\\"')
    lines = [f'[[users."{quoted}".credentials]]']
    for name, value in credential.encode().items():
        lines.append(f"{name} = {value}" if isinstance(value, int) else f'{name} = "{value}"')
    return "\n".join(lines) + "\n"


def _credentials(user: str, entry: object, users: Users) -> list[ScramCredential]:
    _check_user(user)
    match entry:
        case str():
            return _derived(user, entry, list(Mechanism), users)
        case {"password": str(password), **rest} if rest.keys() <= {"mechanisms"}:
            return _derived(user, password, _mechanisms(user, rest.get("mechanisms")), users)
        case {"credentials": list(values), **rest} if not rest and values:
            credentials = [_credential(user, value) for value in values]
            if len({c.mechanism for c in credentials}) != len(credentials):
                raise SecurityConfigError(f"user {user!r} has two credentials for one mechanism")
            return credentials
        case _:
            raise SecurityConfigError(
                f"user {user!r} needs a password (and optionally mechanisms), or credentials"
            )


def _credential(user: str, value: object) -> ScramCredential:
    if not isinstance(value, dict):
        raise SecurityConfigError(f"a credential of user {user!r} is not a table")
    try:
        return ScramCredential.decode(value)
    except SecurityConfigError as error:
        raise SecurityConfigError(f"user {user!r}: {error}") from error


def _derived(
    user: str, password: str, mechanisms: list[Mechanism], users: Users
) -> list[ScramCredential]:
    if not password:
        raise SecurityConfigError(f"user {user!r} has an empty password")
    try:
        if saslprep(password) != password:
            # RFC 5802 prepares passwords; most Kafka clients send theirs as typed.
            logger.warning("password changes under SASLprep, clients may fail user=%r", user)
        return [
            ScramCredential.derive(m, password, users.salt(user, m), ITERATIONS_DEFAULT)
            for m in mechanisms
        ]
    except Unpreparable as error:
        raise SecurityConfigError(f"the password of user {user!r}: {error}") from None


def _mechanisms(user: str, names: object) -> list[Mechanism]:
    if names is None:
        return list(Mechanism)
    if not isinstance(names, list) or not names:
        raise SecurityConfigError(f"mechanisms of user {user!r} is a list of SCRAM mechanisms")
    found = {Mechanism.named(str(name)) for name in names}
    known = sorted(m for m in found if m is not None)
    if len(known) != len(found):
        raise SecurityConfigError(f"user {user!r} has an unknown mechanism")
    return known


def _check_user(user: str) -> None:
    problem = name_problem(user)
    if problem:
        raise SecurityConfigError(f"user {user!r}: {problem}")


def _read_private(path: Path) -> str:
    """The text of a file that only its owner may read and that is ours or root's."""
    try:
        with path.open("rb") as file:
            # The open file is examined, not the path, which could be exchanged in between.
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecurityConfigError(f"{path} is not a regular file")
            if hasattr(os, "getuid"):
                _check_mode(path, status)
            return file.read().decode()
    except OSError as error:
        raise SecurityConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SecurityConfigError(f"{path} is not UTF-8") from None


def _check_mode(path: Path, status: os.stat_result) -> None:
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise SecurityConfigError(f"{path} has mode {mode:04o}, it must be 0600")
    if status.st_uid not in (os.getuid(), 0):
        raise SecurityConfigError(f"{path} belongs to another user")
