"""InitProducerId (22), v0-6.

Without a transactional id: a fresh producer id. With one: the next pair; what is ongoing is aborted in
the same journal entry, or kept and described for recovery (v6, KIP-939). v3 names the pair of a producer
that goes on (KIP-360), v4 knows PRODUCER_FENCED.

Rights: WRITE on the id, TWO_PHASE_COMMIT too for two-phase commit. Aborting somebody's two-phase or kept
transaction overrules what its database may have decided, so it needs TWO_PHASE_COMMIT on the id or ALTER
on the cluster. Without an id: IDEMPOTENT_WRITE on the cluster, or WRITE on any topic. More ids or open
two-phase transactions than a principal may have are a POLICY_VIOLATION.
"""

import logging
from typing import TYPE_CHECKING

from dualwrite.broker.acl import Operation, ResourceType
from dualwrite.broker.handlers import handles
from dualwrite.broker.transactions.dialect import dialect
from dualwrite.broker.transactions.state import Pair
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from dualwrite.broker.call import Call
    from dualwrite.broker.node import Node

log = logging.getLogger("dualwrite.broker")


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 6), request=InitProducerIdRequest)
def init_producer_id(node: "Node", call: "Call[InitProducerIdRequest]") -> InitProducerIdResponse:
    request = call.request
    transactional_id = request.transactional_id
    error = _check_rights(node, call)
    if not error and transactional_id:
        error = node.transaction_error(transactional_id)
    if error:
        return _failed(error, call.version)
    overrules = not request.keep_prepared_txn and node.transactions.would_overrule(
        transactional_id or ""
    )
    decision = node.transactions.init_producer_id(
        transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        expected=Pair(request.producer_id, request.producer_epoch),
        enable_2pc=request.enable_2pc,
        keep_prepared=request.keep_prepared_txn,
        owner=call.principal,
        now=call.now,
    )
    node.execute(decision, call.now)
    if overrules and decision.records:
        # Also if a marker has to wait for a partition: the outcome is decided.
        log.warning(
            "%s from %s aborted the two-phase transaction %s of %r by force",
            call.principal,
            call.client_host,
            decision.records[0].last_finished,
            transactional_id,
        )
    if decision.error:
        return _failed(decision.error, call.version)
    return InitProducerIdResponse(
        producer_id=decision.producer.producer_id,
        producer_epoch=decision.producer.producer_epoch,
        ongoing_txn_producer_id=decision.ongoing.producer_id,
        ongoing_txn_producer_epoch=decision.ongoing.producer_epoch,
        last_producer_id=decision.last_finished.producer_id,
        last_producer_epoch=decision.last_finished.producer_epoch,
        last_outcome=decision.last_outcome or None,
        last_cause=decision.last_cause or None,
    )


def _check_rights(node: "Node", call: "Call[InitProducerIdRequest]") -> ErrorCode:
    request = call.request
    name = request.transactional_id
    if name is None:
        may = call.may(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster")
        if may or call.rights.allows_any_topic(call.principal, call.client_host, Operation.WRITE):
            return ErrorCode.NONE
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not call.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    may_two_phase = call.may(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    if may_two_phase:
        return ErrorCode.NONE
    if request.enable_2pc:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    overrules = not request.keep_prepared_txn and node.transactions.would_overrule(name)
    if overrules and not call.may(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _failed(error: ErrorCode, version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=dialect(error, ApiKey.INIT_PRODUCER_ID, version), producer_epoch=-1
    )
