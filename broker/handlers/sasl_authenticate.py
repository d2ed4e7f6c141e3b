"""SaslAuthenticate (36), v0-2.

Takes the mechanism's next message. A failure tells the client the same for an unknown user and a wrong
password; the connection is closed a little later. v1 tells how long the session lasts (KIP-368).
"""

from typing import TYPE_CHECKING

from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.SASL_AUTHENTICATE, versions=(0, 2), request=SaslAuthenticateRequest)
def sasl_authenticate(
    node: "Node", call: "Call[SaslAuthenticateRequest]"
) -> SaslAuthenticateResponse:
    sasl = call.connection.sasl
    if sasl is None:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    reply = sasl.authenticate(call.request.auth_bytes, call.now)
    return SaslAuthenticateResponse(
        error_code=reply.error_code,
        error_message=reply.error_message,
        auth_bytes=reply.auth_bytes,
        session_lifetime_ms=reply.session_lifetime_ms,
    )
