"""TLS by librdkafka's configuration keys."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from dualwrite.config import ClientConfig
from dualwrite.errors import ConfigurationError


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The context for `ssl` and `sasl_ssl`; None without TLS."""
    if not config.uses_tls:
        return None
    with _naming("ssl.ca.location", config.ssl_ca_location):
        context = ssl.create_default_context(cafile=config.ssl_ca_location)
    if not config.ssl_verify_hostname or not config.ssl_verify_certificate:
        context.check_hostname = False
    if not config.ssl_verify_certificate:
        context.verify_mode = ssl.CERT_NONE
    certificate, key = config.ssl_certificate_location, config.ssl_key_location
    if certificate is not None:
        with _naming("ssl.certificate.location, ssl.key.location", certificate, key):
            # Without any password OpenSSL would ask for it at the terminal.
            context.load_cert_chain(certificate, key, config.ssl_key_password or "")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@contextmanager
def _naming(keys: str, *files: str | None) -> Iterator[None]:
    """Say which files cannot be used: OpenSSL's own errors don't."""
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        given = ", ".join(file for file in files if file is not None)
        raise ConfigurationError(f"TLS cannot be set up by {keys} {given}: {error}") from error


def refusal(error: Exception) -> Exception:
    """What a failed connection means: a certificate that is not trusted will not be so later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = ConfigurationError(f"the broker's certificate is refused: {error.verify_message}")
        refused.__cause__ = error
        return refused
    return error
