"""What a new connection says first, by the configuration."""

import secrets

from dualwrite.config import ClientConfig
from dualwrite.flows.handshake import Credentials, Handshake, handshake


def new_handshake(config: ClientConfig) -> Handshake:
    """A handshake for one connection, with a nonce of its own."""
    if not config.uses_sasl:
        return handshake(None)
    assert config.sasl_mechanism is not None
    credentials = Credentials(
        config.sasl_mechanism,
        config.sasl_username or "",
        config.sasl_password or "",
        secrets.token_urlsafe(24),
    )
    return handshake(credentials)
