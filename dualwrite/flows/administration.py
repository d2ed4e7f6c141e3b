"""`AdminFlows`: the conversations of `TransactionAdmin`."""

import re
from collections.abc import Sequence
from typing import Any

from dualwrite.config import ClientConfig
from dualwrite.descriptions import (
    BrokerFeatures,
    FinishedTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from dualwrite.failures import UnsupportedByBroker
from dualwrite.flows import verdicts
from dualwrite.flows.cluster import TRANSACTION, Cluster, ConnectionLost, MakeRequest
from dualwrite.flows.steps import Flow
from dualwrite.flows.verdicts import Verdict
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from dualwrite.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    TransactionState,
)
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)

_BY_DURATION = 1
_BY_PATTERN = 2
_FENCING_INIT_MAX = 5  # KIP-939: force-terminate is an InitProducerId without two-phase commit
_END_V2 = 5


class AdminFlows:
    """What an administrator can ask, without IO."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self.cluster = Cluster(
            config.bootstrap,
            timeout_ms=config.socket_timeout_ms,
            backoff_ms=config.retry_backoff_ms,
            backoff_ms_max=config.retry_backoff_ms_max,
            auto_create_topics=False,
        )

    def cluster_id(self) -> Flow[str]:
        yield from self.cluster.refresh([])
        return self.cluster.cluster_id

    def features(self) -> Flow[BrokerFeatures]:
        link = yield from self.cluster.any_link()
        return BrokerFeatures(self.cluster.finalized, self.cluster.links[link].versions)

    def list_transactions(
        self,
        states: Sequence[str],
        min_duration_ms: int | None,
        id_pattern: str | None,
        wall_clock_ms: int,
    ) -> Flow[list[TransactionListing]]:
        """Ask every broker for the ids that it coordinates."""
        for state in states:
            _require_text("a state", state)
        if id_pattern is not None:
            _require_text("id_pattern", id_pattern)
        if min_duration_ms is not None and not isinstance(min_duration_ms, int):
            raise TypeError(f"min_duration_ms must be a whole number, not {min_duration_ms!r}")
        yield from self.cluster.refresh([])
        listed: dict[str, TransactionListing] = {}
        unfiltered: set[str] = set()
        for node in self.cluster.nodes:
            version, response = yield from self._list_at(node, states, min_duration_ms, id_pattern)
            if response.unknown_state_filters:
                # Such a filter lets nothing pass, which would read as "there is none".
                unknown = ", ".join(response.unknown_state_filters)
                raise UnsupportedByBroker(f"the broker knows no transaction state {unknown}")
            for found in response.transaction_states:
                name = found.transactional_id
                if version < _BY_PATTERN and id_pattern is not None and not _fits(id_pattern, name):
                    continue
                listed[name] = TransactionListing(name, found.producer_id, found.transaction_state)
                if version < _BY_DURATION:
                    unfiltered.add(name)
        if min_duration_ms is not None and unfiltered:
            described = yield from self.describe_transactions(sorted(unfiltered))
            for name, one in described.items():
                if one is None or wall_clock_ms - one.start_time_ms <= min_duration_ms:
                    del listed[name]
        return [listed[name] for name in sorted(listed)]

    def _list_at(
        self, node: int, states: Sequence[str], min_duration_ms: int | None, id_pattern: str | None
    ) -> Flow[tuple[int, ListTransactionsResponse]]:
        def make(version: int) -> ListTransactionsRequest:
            request = ListTransactionsRequest(state_filters=list(states))
            if version >= _BY_DURATION and min_duration_ms is not None:
                request.duration_filter = min_duration_ms
            if version >= _BY_PATTERN and id_pattern is not None:
                request.transactional_id_pattern = id_pattern
            return request

        return (yield from self._ask_node(node, ApiKey.LIST_TRANSACTIONS, make, _code))

    def describe_transactions(
        self, transactional_ids: Sequence[str]
    ) -> Flow[dict[str, TransactionDescription | None]]:
        described: dict[str, TransactionDescription | None] = {}
        for name in transactional_ids:
            _require_text("a transactional id", name)
        for name in transactional_ids:
            described[name] = yield from self._describe(name)
        return described

    def _describe(self, transactional_id: str) -> Flow[TransactionDescription | None]:
        request = DescribeTransactionsRequest([transactional_id])
        response = yield from self._ask(
            transactional_id, ApiKey.DESCRIBE_TRANSACTIONS, request, 0, 0, _described_code
        )
        if not response.transaction_states:
            return None
        state: TransactionState = response.transaction_states[0]
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        coordinator = self.cluster.known_coordinator(TRANSACTION, transactional_id)
        return _description(state, coordinator)

    def describe_producers(self, topic: str, partition: int) -> Flow[list[ProducerDescription]]:
        _require_text("topic", topic)
        if not isinstance(partition, int):
            raise TypeError(f"partition must be a whole number, not {partition!r}")
        request = DescribeProducersRequest([TopicRequest(topic, [partition])])
        attempt = 0
        while True:
            yield from self.cluster.know_topic(topic)
            if partition >= len(self.cluster.topics[topic].leaders):
                code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                raise verdicts.plain_failure(code, f"{topic!r} [{partition}]")
            leader = self.cluster.leader(topic, partition)
            if leader is not None:
                _, response = yield from self._ask_node(
                    leader, ApiKey.DESCRIBE_PRODUCERS, lambda version: request, lambda response: 0
                )
                found = [p for t in response.topics if t.name == topic for p in t.partitions]
                if found and not found[0].error_code:
                    return [_producer(one) for one in found[0].active_producers]
                code = found[0].error_code if found else int(ErrorCode.UNKNOWN_SERVER_ERROR)
                if code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    raise verdicts.plain_failure(code, f"producers of {topic!r} [{partition}]")
            attempt += 1
            self.cluster.topics.pop(topic, None)
            yield from self.cluster.pause(self.cluster.backoff(attempt))

    def force_terminate(self, transactional_id: str) -> Flow[None]:
        """Fence the id's producer by taking its id over, which aborts what is open.

        Looking first keeps an id that was misspelt from being created by the attempt.
        """
        _require_text("a transactional id", transactional_id)
        known = yield from self._describe(transactional_id)
        if known is None:
            code = int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            raise verdicts.plain_failure(code, f"transactional id {transactional_id!r}")
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=self._config.transaction_timeout_ms,
        )
        yield from self._ask(
            transactional_id, ApiKey.INIT_PRODUCER_ID, request, _FENCING_INIT_MAX, 0, _code
        )

    def end_txn(
        self, transactional_id: str, pair: PreparedTxnState, commit: bool
    ) -> Flow[PreparedTxnState]:
        # The coordinator's own connection shows the newest feature levels.
        yield from self._describe(transactional_id)
        is_version_2 = self.cluster.transaction_version >= 2
        request = EndTxnRequest(transactional_id, pair.producer_id, pair.epoch, commit)
        response: EndTxnResponse = yield from self._ask(
            transactional_id,
            ApiKey.END_TXN,
            request,
            _END_V2 if is_version_2 else _END_V2 - 1,
            _END_V2 if is_version_2 else 0,
            _code,
        )
        return PreparedTxnState(response.producer_id, response.producer_epoch)

    def _ask(
        self,
        transactional_id: str,
        api_key: ApiKey,
        request: Any,
        limit: int,
        at_least: int,
        code_of: Any,
    ) -> Flow[Any]:
        return (
            yield from self.cluster.ask_coordinator(
                TRANSACTION,
                transactional_id,
                api_key,
                lambda version: request,
                verdicts.ADMINISTRATION,
                limit=limit,
                at_least=at_least,
                code_of=code_of,
                fail=_refusal,
                context=f"{api_key.name} of {transactional_id!r}",
            )
        )

    def _ask_node(
        self, node: int, api_key: ApiKey, make: MakeRequest, code_of: Any
    ) -> Flow[tuple[int, Any]]:
        """Ask one broker, until it answers with success or a refusal."""
        attempt = 0
        while True:
            try:
                link = yield from self.cluster.connect(node)
                version = self.cluster.version(link, api_key, 2)
                response = yield from self.cluster.call(link, make(version), version)
            except ConnectionLost:
                attempt += 1
                yield from self.cluster.pause(self.cluster.backoff(attempt))
                yield from self.cluster.refresh([])
                continue
            code = code_of(response)
            judgement = verdicts.verdict(verdicts.ADMINISTRATION, code)
            if judgement is Verdict.DONE:
                return version, response
            if judgement not in (Verdict.RETRY, Verdict.MOVED):
                raise verdicts.plain_failure(code, f"{api_key.name} at broker {node}")
            attempt += 1
            yield from self.cluster.pause(self.cluster.backoff(attempt))


def _require_text(what: str, given: object) -> None:
    if not isinstance(given, str):
        raise TypeError(f"{what} must be a text, not {given!r}")


def _refusal(judgement: Verdict, code: int, context: str) -> Exception:
    return verdicts.plain_failure(code, context)


def _code(response: Any) -> int:
    return int(response.error_code)


def _described_code(response: Any) -> int:
    """An id that is not known is an answer, not a failure."""
    codes = [state.error_code for state in response.transaction_states]
    return next((c for c in codes if c and c != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), 0)


def _fits(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        code = int(ErrorCode.INVALID_REGULAR_EXPRESSION)
        raise verdicts.plain_failure(code, f"pattern {pattern!r}: {error}") from error


def _description(state: TransactionState, coordinator: int) -> TransactionDescription:
    last = None
    if state.last_producer_id >= 0:
        last = FinishedTransaction(
            PreparedTxnState(state.last_producer_id, state.last_producer_epoch),
            state.last_outcome or "",
            state.last_cause or "",
        )
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        pair=PreparedTxnState(state.producer_id, state.producer_epoch),
        timeout_ms=state.transaction_timeout_ms,
        start_time_ms=state.transaction_start_time_ms,
        partitions=tuple(
            (topic.topic, partition) for topic in state.topics for partition in topic.partitions
        ),
        coordinator=coordinator,
        last_finished=last,
    )


def _producer(state: Any) -> ProducerDescription:
    return ProducerDescription(
        producer_id=state.producer_id,
        epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        transaction_start_offset=state.current_txn_start_offset,
    )
