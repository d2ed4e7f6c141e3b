"""Connections that are not there at once, and names with several addresses, under both drivers.

A listener whose queue is full drops a SYN, as a distant or dead host would: `connect` has begun, and
nothing says for a second what will become of it. On loopback every other connection is made at once.
"""

import socket
import threading
from pathlib import Path

import pytest

from dualwrite import addresses
from dualwrite.broker import Broker
from tests.client.test_security import INITS
from tests.dualwrite.waiting import wait_until
from tests.security.authority import Authority
from tests.servers.cutting_proxy import CuttingProxy

SYN_SENT = "02"


def is_connecting_to(port):
    """Whether a socket waits for the answer to its SYN."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    places = ((remote, state) for _, _, remote, state, *_ in map(str.split, lines))
    return any(remote.endswith(f":{port:04X}") and state == SYN_SENT for remote, state in places)


class SilentAddress(CuttingProxy):
    """Takes no connection until it is opened; then it forwards all."""

    def __init__(self, target_port):
        self._is_open = threading.Event()
        super().__init__(target_port)
        self._listener.listen(0)
        self._queued = [socket.create_connection(("127.0.0.1", self.port))]

    def _accept(self):
        self._is_open.wait()
        super()._accept()

    def open(self):
        self._is_open.set()

    def close(self):
        self.open()
        for one in self._queued:
            one.close()
        super().close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_broker(authority):
    certificate, key = authority.issue("localhost")
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def config(tls_broker, authority, name):
    return {
        "bootstrap.servers": tls_broker.bootstrap_servers,
        "transactional.id": name,
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.ca),
        "retry.backoff.ms": 10,
    }


@pytest.fixture
def silent(tls_broker):
    with SilentAddress(int(tls_broker.bootstrap_servers.rpartition(":")[2])) as address:
        yield address


@pytest.mark.parametrize("driver", INITS)
def test_tls_begins_when_the_connection_is_there(config, silent, driver):
    config["bootstrap.servers"] = f"127.0.0.1:{silent.port}"
    config["retry.backoff.ms"] = config["retry.backoff.max.ms"] = 60_000  # the first must do
    producing = threading.Thread(target=INITS[driver], args=(config,))
    producing.start()
    wait_until(lambda: is_connecting_to(silent.port))
    silent.open()
    producing.join(30)

    assert not producing.is_alive()


def also_at(port, monkeypatch):
    """Let the broker's name have another address in front, at which something else is."""
    resolve = socket.getaddrinfo

    def resolved(host, *more, **options):
        family, kind, protocol, name, (ip, _) = resolve(host, *more, **options)[0]
        return [(family, kind, protocol, name, (ip, port)), *resolve(host, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.parametrize("driver", INITS)
def test_an_address_that_refuses_is_left_for_the_next(config, driver, monkeypatch):
    with socket.socket() as nobody:  # bound, so that nobody else is there, and not listening
        nobody.bind(("127.0.0.1", 0))
        also_at(nobody.getsockname()[1], monkeypatch)
        INITS[driver](config)


@pytest.mark.parametrize("driver", INITS)
def test_an_address_that_is_silent_is_left_for_the_next(config, silent, driver, monkeypatch):
    monkeypatch.setattr(addresses, "PATIENCE_MS", 100)
    also_at(silent.port, monkeypatch)
    INITS[driver](config)
