"""The addresses behind a broker's name: they are tried one after another."""

import socket
from typing import Any

from dualwrite.config import ClientConfig

Target = tuple[int, Any]  # an address family and an address in its form

FAMILIES = {"any": socket.AF_UNSPEC, "v4": socket.AF_INET, "v6": socket.AF_INET6}

PATIENCE_MS = 4_000
"""How long an address may be silent while there is another one: time for two more SYNs, and well
below the time in which a call gives up."""


def targets_of(found: list[tuple[Any, ...]]) -> list[Target]:
    """What `getaddrinfo` has found."""
    return [(family, target) for family, _, _, _, target in found]


def new_socket(config: ClientConfig, family: int) -> socket.socket:
    """A socket that never blocks, by the client's settings."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if config.keepalive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def patience_ms(config: ClientConfig, others: list[Target]) -> float:
    """How long to wait for one address."""
    return min(config.connect_timeout_ms, PATIENCE_MS) if others else config.connect_timeout_ms
