"""SaslHandshake (17), v0-1.

Agrees on a mechanism. Served before authentication, and again for re-authentication (KIP-368). The
enabled mechanisms are always listed: several clients go on only if theirs is among them. After v0 the
messages that follow are bare frames (KIP-43), which the connection takes by itself.
"""

from typing import TYPE_CHECKING

from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node


@handles(ApiKey.SASL_HANDSHAKE, versions=(0, 1), request=SaslHandshakeRequest)
def sasl_handshake(node: "Node", call: "Call[SaslHandshakeRequest]") -> SaslHandshakeResponse:
    sasl = call.connection.sasl
    if sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    reply = sasl.handshake(call.request.mechanism, call.version)
    return SaslHandshakeResponse(error_code=reply.error_code, mechanisms=list(reply.mechanisms))
