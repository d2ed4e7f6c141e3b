"""DeleteTopics (20), v1-6.

By name, from v6 also by id; one that is named twice is not deleted. Internal topics can't be deleted. A
transaction that waits for a marker in the deleted topic owes none any more and goes on.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.message import NO_UUID
from dualwrite.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

_KNOWS_DISABLED: Final = 3


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6), request=DeleteTopicsRequest)
def delete_topics(node: "Node", call: "Call[DeleteTopicsRequest]") -> DeleteTopicsResponse:
    request = call.request
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    named = Counter(_identity(node, state) for state in wanted)
    states = {(state.name, state.topic_id): state for state in wanted}
    return DeleteTopicsResponse(
        responses=[
            _result(state, ErrorCode.INVALID_REQUEST)
            if named[_identity(node, state)] > 1
            else _delete(node, call, state)
            for state in states.values()
        ]
    )


def _identity(node: "Node", state: DeleteTopicState) -> bytes | str | None:
    """The same for a topic's name and its id."""
    known = None if state.name is None else node.topics.get(state.name)
    if known is not None:
        return known.id
    return state.name if state.topic_id == NO_UUID else state.topic_id


def _delete(
    node: "Node", call: "Call[DeleteTopicsRequest]", state: DeleteTopicState
) -> DeletableTopicResult:
    by_id = state.topic_id != NO_UUID
    if by_id == (state.name is not None):
        return _result(state, ErrorCode.INVALID_REQUEST)
    topic = node.topics.by_id(state.topic_id) if by_id else node.topics.get(state.name or "")
    name = state.name if topic is None else topic.name
    if name is not None and not call.may(Operation.DELETE, ResourceType.TOPIC, name):
        # Whoever asks by id must not learn the name (KIP-516).
        if by_id and not call.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return _result(state, ErrorCode.UNKNOWN_TOPIC_ID)
        return _result(state, ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _result(state, code)
    if topic.is_internal:
        return _result(state, ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    if not node.settings["delete.topic.enable"]:
        is_known = call.version >= _KNOWS_DISABLED
        code = ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST
        return _result(state, code, name)
    node.delete_topic(topic, call.now)
    return DeletableTopicResult(name=topic.name, topic_id=topic.id)


def _result(
    state: DeleteTopicState, code: ErrorCode, name: str | None = None
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name or state.name,
        topic_id=state.topic_id,
        error_code=code,
        error_message=code.name.replace("_", " ").lower(),
    )
