"""TLS by librdkafka's configuration keys."""

import ssl

from dualwrite.config import ClientConfig
from dualwrite.errors import ConfigurationError


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The context for `ssl` and `sasl_ssl`; None without TLS."""
    if not config.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=config.ssl_ca_location)
        if not config.ssl_verify_hostname or not config.ssl_verify_certificate:
            context.check_hostname = False
        if not config.ssl_verify_certificate:
            context.verify_mode = ssl.CERT_NONE
        if config.ssl_certificate_location is not None:
            context.load_cert_chain(
                config.ssl_certificate_location, config.ssl_key_location, config.ssl_key_password
            )
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"TLS cannot be set up: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def refusal(error: Exception) -> Exception:
    """What a failed connection means: a certificate that is not trusted will not be so later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = ConfigurationError(f"the broker's certificate is refused: {error.verify_message}")
        refused.__cause__ = error
        return refused
    return error
