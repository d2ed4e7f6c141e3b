"""Puts the locks on the listeners: TLS contexts, SASL services, users and rights, from the settings.

Everything is checked before a port is opened; a mistake in the settings is a refusal to start that
names the setting, never a listener that is weaker than it was meant to be.
"""

import logging
import secrets
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dualwrite.broker.clock import Now
from dualwrite.broker.listeners import Listener
from dualwrite.broker.security.plain import PLAIN, PasswordCheck
from dualwrite.broker.security.sasl import SaslService
from dualwrite.broker.security.users import SECRET_BYTES, secret_record
from dualwrite.broker.security.users_file import read_users_file
from dualwrite.broker.settings import SettingError, Settings

if TYPE_CHECKING:
    from dualwrite.broker.node import Node

logger = logging.getLogger("dualwrite.broker.security")


def tighten(settings: Settings, listeners: list[Listener]) -> None:
    """Set what nobody has set to what suits the listeners.

    Rights are checked if and only if somebody can prove who they are. Where they can, a topic is made
    on purpose, not by a misspelt name. Two-phase commit is everybody's only on loopback.
    """
    authenticates = any(listener.authenticates for listener in listeners)
    if settings["authorizer.enable"] is None:
        settings.explicit["authorizer.enable"] = authenticates
    if authenticates and "auto.create.topics.enable" not in settings.explicit:
        settings.explicit["auto.create.topics.enable"] = False
    if settings["transaction.two.phase.commit.enable"] is None:
        is_private = all(spec.is_loopback and not spec.authenticates for spec in listeners)
        settings.explicit["transaction.two.phase.commit.enable"] = is_private


def lock(node: "Node", listeners: Iterable[Listener], now: Now) -> None:
    """Give every listener the TLS context and the SASL service that its protocol asks for."""
    settings = node.settings
    listeners = list(listeners)
    wants_sasl = [spec for spec in listeners if spec.protocol.startswith("SASL_")]
    if wants_sasl:
        _load_users(node, now)
        passwords = PasswordCheck(node.users, secrets.token_bytes(32))
        for spec in wants_sasl:
            spec.sasl = SaslService(
                users=node.users,
                passwords=passwords,
                mechanisms=_mechanisms(spec, settings),
                new_nonce=lambda: secrets.token_urlsafe(24),
                max_reauth_ms=settings["connections.max.reauth.ms"],
            )
    if any(spec.protocol.endswith("SSL") for spec in listeners):
        context = server_context(settings)
        for spec in listeners:
            if spec.protocol.endswith("SSL"):
                spec.ssl = context


def _load_users(node: "Node", now: Now) -> None:
    if not node.users.has_secret:
        node.commit([], now, [secret_record(secrets.token_bytes(SECRET_BYTES))])
        node.storage.flush()
    path = node.settings["users.file"]
    if path is not None:
        read_users_file(Path(path), node.users)
    elif not node.users.names():
        logger.warning("no user can log in yet; name some in users.file")


def _mechanisms(spec: Listener, settings: Settings) -> list[str]:
    mechanisms: list[str] = settings["sasl.enabled.mechanisms"]
    if spec.protocol == "SASL_SSL":
        return mechanisms
    if PLAIN in mechanisms:
        if not settings["allow.plain.over.plaintext"]:
            raise SettingError(
                f"sasl.enabled.mechanisms: PLAIN on {spec.name} would send passwords in the clear; "
                "use SASL_SSL, or allow it with allow.plain.over.plaintext=true"
            )
        logger.warning("listener %s takes passwords in the clear", spec.name)
    elif not spec.is_loopback:
        logger.warning("listener %s authenticates without encryption", spec.name)
    return mechanisms


class _Handshake(ssl.SSLObject):
    """A handshake that says why it failed; the event loop closes the connection without a word."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", None) or error.reason or str(error)
            logger.warning("TLS handshake failed reason=%r", reason)
            raise


def server_context(settings: Settings) -> ssl.SSLContext:
    """The TLS side of the listeners: 1.2 or newer, clients' certificates as the settings say."""
    certificate, key = settings["ssl.certificate.location"], settings["ssl.key.location"]
    if certificate is None:
        raise SettingError("ssl.certificate.location: a listener with TLS needs a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _Handshake
    try:
        # Without any password OpenSSL would ask for it at the terminal.
        context.load_cert_chain(certificate, key, settings["ssl.key.password"] or "")
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"ssl.certificate.location, ssl.key.location: {error}") from error
    wanted = settings["ssl.client.auth"]
    if wanted != "none":
        if settings["ssl.ca.location"] is None:
            raise SettingError("ssl.ca.location: needed to check clients' certificates")
        try:
            context.load_verify_locations(settings["ssl.ca.location"])
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"ssl.ca.location: {error}") from error
        is_required = wanted == "required"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = ',+"\\<>;='


def principal_of(certificate: dict[str, object] | None) -> str | None:
    """The principal of a client's certificate: its whole name as RFC 2253 writes it, as in Kafka.

    Every special character is escaped: a common name that holds a comma can't pass for two parts.
    """
    subject = (certificate or {}).get("subject")
    if not isinstance(subject, tuple) or not subject:
        return None
    parts = [
        "+".join(f"{_SHORT_NAMES.get(name, name)}={_escape(value)}" for name, value in relative)
        for relative in reversed(subject)
    ]
    return "User:" + ",".join(parts)


def _escape(value: str) -> str:
    escaped = "".join(f"\\{c}" if c in _ESCAPED else c for c in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
