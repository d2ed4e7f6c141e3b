"""What happens on a new connection before the first request: ApiVersions and SASL.

A handshake is a generator too, of a simpler kind: it yields one request after the other and gets
each answer, because nothing else can happen on the connection meanwhile.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dualwrite.errors import ConfigurationError
from dualwrite.failures import UnsupportedByBroker
from dualwrite.flows.scram import ScramClient, ScramError
from dualwrite.flows.steps import Offer
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from dualwrite.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from dualwrite.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

SOFTWARE_NAME = "dualwrite"
SOFTWARE_VERSION = "0.1.0"

_SASL_HANDSHAKE = 17
_API_VERSIONS = 18
_SASL_AUTHENTICATE = 36
_API_VERSIONS_VERSION = 3


class Ask(NamedTuple):
    """One request of a handshake."""

    request: Any
    version: int


Handshake: TypeAlias = Generator[Ask, Any, Offer]


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to log in. The nonce is SCRAM's and must be new for every connection."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    nonce: str = field(repr=False)


def handshake(credentials: Credentials | None) -> Handshake:
    """Learn what the broker speaks, log in if told to, and return the offer."""
    request = ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
    )
    response: ApiVersionsResponse = yield Ask(request, _API_VERSIONS_VERSION)
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        response = yield Ask(ApiVersionsRequest(), 0)
    if response.error_code:
        raise UnsupportedByBroker(
            f"ApiVersions was answered {ErrorCode.name_of(response.error_code)}"
        )
    offer = _offer(response)
    if credentials is not None:
        yield from _log_in(credentials, offer)
    return offer


def _offer(response: ApiVersionsResponse) -> Offer:
    return Offer(
        versions={api.api_key: (api.min_version, api.max_version) for api in response.api_keys},
        features_epoch=response.finalized_features_epoch,
        finalized={
            feature.name: feature.max_version_level for feature in response.finalized_features
        },
    )


def _log_in(credentials: Credentials, offer: Offer) -> Generator[Ask, Any, None]:
    _, newest = offer.versions.get(_SASL_HANDSHAKE, (0, -1))
    if newest < 1:
        raise UnsupportedByBroker("the broker does not offer SaslHandshake v1")
    chosen: SaslHandshakeResponse = yield Ask(SaslHandshakeRequest(credentials.mechanism), 1)
    if chosen.error_code:
        offered = ", ".join(chosen.mechanisms) or "none"
        raise ConfigurationError(
            f"the broker refuses 'sasl.mechanism' {credentials.mechanism}, it offers: {offered}"
        )
    _, newest = offer.versions.get(_SASL_AUTHENTICATE, (0, 0))
    version = max(0, min(newest, 2))
    if credentials.mechanism == "PLAIN":
        message = f"\0{credentials.username}\0{credentials.password}".encode()
        yield from _authenticate(message, version)
        return
    scram = ScramClient(
        credentials.mechanism, credentials.username, credentials.password, credentials.nonce
    )
    try:
        server_first = yield from _authenticate(scram.first(), version)
        server_final = yield from _authenticate(scram.final(server_first), version)
        scram.verify(server_final)
    except ScramError as error:
        raise ConfigurationError(f"SASL exchange failed: {error}") from error


def _authenticate(message: bytes, version: int) -> Generator[Ask, Any, bytes]:
    answer: SaslAuthenticateResponse = yield Ask(SaslAuthenticateRequest(message), version)
    if answer.error_code:
        reason = answer.error_message or ErrorCode.name_of(answer.error_code)
        raise ConfigurationError(f"the broker refuses the login: {reason}")
    return answer.auth_bytes
