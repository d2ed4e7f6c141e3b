"""TLS by librdkafka's configuration keys."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from dualwrite.config import ClientConfig
from dualwrite.errors import ConfigurationError


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The context for `ssl` and `sasl_ssl`; None without TLS."""
    if not config.uses_tls:
        return None
    if config.ssl_ca_pem is not None:
        with _naming({"ssl.ca.pem": None}):
            context = ssl.create_default_context(cadata=_of_ascii(config.ssl_ca_pem))
    else:
        with _naming({"ssl.ca.location": config.ssl_ca_location}):
            context = ssl.create_default_context(cafile=config.ssl_ca_location)
    if not config.ssl_verify_hostname or not config.ssl_verify_certificate:
        context.check_hostname = False
    if not config.ssl_verify_certificate:
        context.verify_mode = ssl.CERT_NONE
    if config.ssl_certificate_location or config.ssl_certificate_pem:
        _load_own_certificate(context, config)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load_own_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    if config.ssl_certificate_pem is not None:
        # Alone first: what is wrong with it afterwards is wrong with the key.
        with _naming({"ssl.certificate.pem": None}):
            alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            alone.load_verify_locations(cadata=_of_ascii(config.ssl_certificate_pem))
    named: dict[str, str | None] = {}
    if config.ssl_certificate_location is not None:
        named["ssl.certificate.location"] = config.ssl_certificate_location
    if config.ssl_key_location is not None:
        named["ssl.key.location"] = config.ssl_key_location
    if config.ssl_key_pem is not None:
        named["ssl.key.pem"] = None
    with (
        _naming(named or {"ssl.certificate.pem": None}),
        _file_of(config.ssl_certificate_location, config.ssl_certificate_pem) as certificate,
        _file_of(config.ssl_key_location, config.ssl_key_pem) as key,
    ):
        assert certificate is not None
        # Without any password OpenSSL would ask for it at the terminal.
        context.load_cert_chain(certificate, key, config.ssl_key_password or "")


@contextmanager
def _file_of(location: str | None, pem: str | None) -> Iterator[str | None]:
    """Where OpenSSL finds it, which reads keys from files alone: a text lies in a private one meanwhile."""
    if pem is None:
        yield location
        return
    descriptor, path = tempfile.mkstemp(prefix="dualwrite-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(pem)
        yield path
    finally:
        os.unlink(path)


def _of_ascii(pem: str) -> str:
    """The same text for `cadata`; what is not ASCII can only stand between the certificates."""
    return pem.encode("ascii", "replace").decode()


@contextmanager
def _naming(given: dict[str, str | None]) -> Iterator[None]:
    """Say by which keys, and which files, TLS cannot be set up: OpenSSL's own errors don't."""
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        keys = ", ".join(given)
        files = ", ".join(file for file in given.values() if file is not None)
        what = f"{keys} {files}".rstrip()
        raise ConfigurationError(f"TLS cannot be set up by {what}: {error}") from error


def refusal(error: Exception) -> Exception:
    """What a failed connection means: a certificate that is not trusted will not be so later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = ConfigurationError(f"the broker's certificate is refused: {error.verify_message}")
        refused.__cause__ = error
        return refused
    return error
