"""AlterUserScramCredentials: v0 (KIP-554).

Sets and removes SCRAM credentials; the client salts the password, so the broker never sees it. Needs
Alter on the cluster. A user is altered wholly or not at all, and one user's error leaves the others
alone. Users of the users file can't be altered: whoever owns the machine owns them.
"""

from collections import Counter
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.call import Call
from dualwrite.broker.handlers import handles
from dualwrite.broker.security.bindings import CLUSTER_NAME
from dualwrite.broker.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    Mechanism,
    ScramCredential,
)
from dualwrite.broker.security.saslprep import name_problem
from dualwrite.broker.security.users import credential_removed, credential_set
from dualwrite.broker.topics import MetaRecord
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from dualwrite.broker.node import Node

Result = AlterUserScramCredentialsResult
_Change = ScramCredentialDeletion | ScramCredentialUpsertion


class _Refused(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, (0, 0), AlterUserScramCredentialsRequest)
def alter_user_scram_credentials(
    node: "Node", call: Call[AlterUserScramCredentialsRequest]
) -> AlterUserScramCredentialsResponse:
    changes: dict[str, list[_Change]] = {}
    asked: list[_Change] = [*call.request.deletions, *call.request.upsertions]
    for change in asked:
        changes.setdefault(change.name, []).append(change)
    if not call.may(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return AlterUserScramCredentialsResponse(
            results=[Result(user=user, error_code=code) for user in changes]
        )
    records: list[MetaRecord] = []
    results: list[Result] = []
    for user, mine in changes.items():
        try:
            records += _records(node, user, mine)
            results.append(Result(user=user))
        except _Refused as refused:
            results.append(Result(user=user, error_code=refused.code, error_message=str(refused)))
    if records:
        node.commit([], call.now, records)
    return AlterUserScramCredentialsResponse(results=results)


def _records(node: "Node", user: str, changes: list[_Change]) -> list[MetaRecord]:
    problem = name_problem(user)
    if problem:
        raise _Refused(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
    if node.users.is_filed(user):
        raise _Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "the user is defined by the broker's users file"
        )
    if max(Counter(change.mechanism for change in changes).values()) > 1:
        raise _Refused(ErrorCode.DUPLICATE_RESOURCE, "a mechanism is altered more than once")
    records: list[MetaRecord] = []
    for change in changes:
        if change.mechanism not in set(Mechanism):
            raise _Refused(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "unknown SCRAM mechanism")
        mechanism = Mechanism(change.mechanism)
        if isinstance(change, ScramCredentialDeletion):
            if node.users.journalled(user, mechanism) is None:
                raise _Refused(ErrorCode.RESOURCE_NOT_FOUND, "the user has no such credential")
            records.append(credential_removed(user, mechanism))
        else:
            records.append(credential_set(user, _credential(mechanism, change)))
    return records


def _credential(mechanism: Mechanism, change: ScramCredentialUpsertion) -> ScramCredential:
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        raise _Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"iterations must be between {ITERATIONS_MIN} and {ITERATIONS_MAX}",
        )
    if not change.salt or len(change.salted_password) != mechanism.key_bytes:
        raise _Refused(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, "salt or salted password has a wrong size"
        )
    return ScramCredential.from_salted(
        mechanism, change.salted_password, change.salt, change.iterations
    )
