"""Where the broker listens, as data: parsed from Kafka's settings, checked before anything is opened."""

import ipaddress
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from dualwrite.broker.settings import SettingError, Settings

if TYPE_CHECKING:
    from dualwrite.broker.security.sasl import SaslService

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(slots=True, kw_only=True)
class Listener:
    """One listener. `port` 0 becomes the port that the system chose; `ssl` and `sasl` are what the
    connections of this listener need, or None."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"
    advertised_host: str = ""
    advertised_port: int = 0
    requires_certificate: bool = False
    ssl: SSLContext | None = None
    sasl: "SaslService | None" = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def authenticates(self) -> bool:
        """Whether its clients must say who they are."""
        return self.protocol.startswith("SASL_") or self.requires_certificate

    @property
    def endpoint(self) -> tuple[str, int]:
        """What clients are told to connect to."""
        return self.advertised_host or self.host, self.advertised_port or self.port


def parse_listeners(settings: Settings) -> list[Listener]:
    """The listeners that the settings describe; raises `SettingError` for what can't be served."""
    protocols = dict(_pair(text) for text in settings["listener.security.protocol.map"] or ())
    listeners: list[Listener] = []
    for text in settings["listeners"]:
        name, host, port = _split(text)
        protocol = protocols.get(name, name)
        if protocol not in PROTOCOLS:
            raise SettingError(f"listeners: {name} has no known security protocol")
        by_certificate = protocol == "SSL" and settings["ssl.client.auth"] == "required"
        listeners.append(
            Listener(
                name=name,
                host=host,
                port=port,
                protocol=protocol,
                requires_certificate=by_certificate,
            )
        )
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) < len(names):
        raise SettingError(f"listeners: need distinct names, got {names}")
    for text in settings["advertised.listeners"] or ():
        name, host, port = _split(text)
        if name not in names:
            raise SettingError(f"advertised.listeners: {name} is not among the listeners")
        listener = listeners[names.index(name)]
        listener.advertised_host, listener.advertised_port = host, port
    for listener in listeners:
        _check(listener, settings)
    return listeners


def _check(listener: Listener, settings: Settings) -> None:
    if listener.is_loopback or listener.authenticates or settings["insecure.listeners"]:
        return
    raise SettingError(
        f"listeners: {listener.name}://{listener.host} can be reached from other machines and asks "
        "nobody who they are; use SASL or client certificates, or allow it with insecure.listeners=true"
    )


def _pair(text: str) -> tuple[str, str]:
    name, colon, protocol = text.partition(":")
    if not colon:
        raise SettingError(f"listener.security.protocol.map: {text!r} is not NAME:PROTOCOL")
    return name, protocol


def _split(text: str) -> tuple[str, str, int]:
    name, sign, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not (sign and name and colon and port.isdigit() and int(port) < 65_536):
        raise SettingError(f"listeners: {text!r} is not NAME://host:port")
    return name, host.strip("[]") or "0.0.0.0", int(port)
