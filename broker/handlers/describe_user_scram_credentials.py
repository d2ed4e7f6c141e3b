"""DescribeUserScramCredentials: v0 (KIP-554).

Lists which SCRAM mechanisms users have, and with how many iterations; never a salt or a key. No list,
or an empty one, asks for every user. Needs Describe on the cluster.
"""

from collections import Counter
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.handlers import handles
from dualwrite.broker.security.bindings import CLUSTER_NAME
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

if TYPE_CHECKING:
    from dualwrite.broker.node import Node

Result = DescribeUserScramCredentialsResult


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, (0, 0), DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(
    node: "Node", call: Call[DescribeUserScramCredentialsRequest]
) -> DescribeUserScramCredentialsResponse:
    if not call.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
    asked = Counter(user.name for user in call.request.users or ())
    names = list(asked) or node.users.names()
    return DescribeUserScramCredentialsResponse(
        results=[_described(node, name, asked[name]) for name in names]
    )


def _described(node: "Node", name: str, times: int) -> Result:
    if times > 1:
        return Result(
            user=name,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message="the user is named more than once",
        )
    credentials = node.users.credentials(name)
    if not credentials:
        return Result(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="the user has no SCRAM credentials",
        )
    return Result(
        user=name,
        credential_infos=[
            CredentialInfo(mechanism=c.mechanism, iterations=c.iterations) for c in credentials
        ],
    )
