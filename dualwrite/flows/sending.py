"""`Sender`: from records to Produce requests and back to acknowledgements.

It is told of records (`put`), asked what to do on the network (`work`), and told of answers
(`settle`, through the tokens of its requests). Order within a partition holds through retries
because a batch that must be sent again goes in front of those that follow it, and because the
broker refuses a batch whose predecessor is missing (45), which then just means "again".
"""

from collections.abc import Callable, Iterable
from typing import Any

from dualwrite.config import ClientConfig
from dualwrite.delivery import (
    NO_OFFSET,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    DeliveredMessage,
    Deliveries,
)
from dualwrite.errors import KafkaError
from dualwrite.failures import AbortableError, UnsupportedByBroker
from dualwrite.flows import verdicts
from dualwrite.flows.batching import Batch, PartitionQueue, Receipt
from dualwrite.flows.cluster import Cluster
from dualwrite.flows.collecting import Choose, Collector
from dualwrite.flows.steps import FOREVER, Action, Send
from dualwrite.flows.verdicts import Verdict
from dualwrite.prepared import PreparedTxnState
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

PRODUCE_V2 = 12
"""From this version on a partition joins the transaction by itself (KIP-890)."""

_REQUEST_BYTES_MAX = 8 * 1024 * 1024
_POLL_MS = 20.0
_ANSWER_MS_MIN = 1_000.0

OnError = Callable[[Exception, bool], None]


class InFlight:
    """The token of a Produce request: which batches it carried."""

    __slots__ = ("batches", "link", "sender")

    def __init__(self, sender: "Sender", link: int, batches: list[Batch]) -> None:
        self.sender = sender
        self.link = link
        self.batches = batches

    def settle(self, outcome: Any) -> None:
        self.sender.settle(self, outcome)


class Sender(Collector):
    """Batches of one producer on their way to the leaders."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, choose: Choose, on_error: OnError
    ) -> None:
        super().__init__(cluster, config, choose)
        self.pair = PreparedTxnState.NONE
        self.is_version_2 = True
        self.is_flushing = False
        self.has_sent = False
        """Something of this transaction may have reached a broker."""
        self.deliveries = Deliveries()
        self._on_error = on_error
        self._transactional_id = config.transactional_id
        self._requests: dict[int, int] = {}
        self._tokens: set[InFlight] = set()

    # The network.

    def unadded(self) -> list[PartitionQueue]:
        """Partitions with records of which the coordinator must be told first."""
        return [queue for queue in self._active if not queue.is_added]

    def topics(self) -> set[str]:
        return {queue.topic for queue in self._active}

    def work(self, now_ms: float) -> list[Action]:
        """What to send now; call again after every event and when the linger time is over."""
        self._seal_due(now_ms)
        actions: list[Action] = []
        reached: set[int] = set()
        while True:
            chosen = self._choose_batches(now_ms, actions, reached)
            if not chosen:
                return actions
            for link, batches in chosen.items():
                request = self._request(link, batches)
                if request is not None:
                    actions.append(request)

    def wake_ms(self, now_ms: float) -> float:
        """When `work` should be called even if nothing happens."""
        if any(queue.waiting for queue in self._active):
            return now_ms + _POLL_MS
        return self.linger_until_ms

    def _seal_due(self, now_ms: float) -> None:
        if not self.is_flushing and now_ms < self.linger_until_ms:
            return
        self.linger_until_ms = FOREVER
        for queue in self._active:
            if not queue.builder.count:
                continue
            due_ms = queue.opened_ms + self._config.linger_ms
            if self.is_flushing or due_ms <= now_ms:
                self._seal(queue)
            elif due_ms < self.linger_until_ms:
                self.linger_until_ms = due_ms

    def _choose_batches(
        self, now_ms: float, actions: list[Action], reached: set[int]
    ) -> dict[int, list[Batch]]:
        """At most one batch per partition and one request per broker."""
        chosen: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        for queue in list(self._active):
            self._expire(queue, now_ms)
            if not queue.waiting or queue.not_before_ms > now_ms:
                continue
            if not (self.is_version_2 or queue.is_added):
                continue
            leader = self._cluster.leader(queue.topic, queue.partition)
            if leader is None:
                self._cluster.is_stale = True
                continue
            link = self._cluster.link_of(leader)
            if link not in self._cluster.links:
                self._reach(leader, actions, reached)
                continue
            if self._requests.get(link, 0) >= self._config.in_flight_max:
                continue
            size = sizes.get(link, 0) + len(queue.waiting[0].data)
            if link in sizes and size > _REQUEST_BYTES_MAX:
                continue
            sizes[link] = size
            chosen.setdefault(link, []).append(queue.take())
        return chosen

    def _reach(self, leader: int, actions: list[Action], reached: set[int]) -> None:
        if leader not in reached:
            reached.add(leader)
            connect = self._cluster.reach(leader)
            if connect is not None:
                actions.append(connect)

    def _request(self, link: int, batches: list[Batch]) -> Send | None:
        try:
            if self.is_version_2:
                version = self._cluster.version(link, ApiKey.PRODUCE, PRODUCE_V2, PRODUCE_V2)
            else:
                version = self._cluster.version(link, ApiKey.PRODUCE, PRODUCE_V2 - 1)
        except UnsupportedByBroker as error:
            for batch in batches:
                self._fail(batch, error, fatal=True)
            return None
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            name = batch.queue.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = TopicProduceData(name=name)
            topic.partition_data.append(PartitionProduceData(batch.queue.partition, batch.data))
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=list(topics.values()),
        )
        token = InFlight(self, link, batches)
        self._tokens.add(token)
        self._requests[link] = self._requests.get(link, 0) + 1
        self.has_sent = True
        # Waiting longer than the records may take would let them expire only with the connection.
        left_ms = min(batch.deadline_ms for batch in batches) - self._cluster.now_ms
        timeout_ms = min(self._config.socket_timeout_ms, max(left_ms, _ANSWER_MS_MIN))
        return Send(link, request, version, token, timeout_ms)

    # Answers.

    def settle(self, token: InFlight, outcome: Any) -> None:
        """Take the answer to a Produce request, or the news that there will be none."""
        if token not in self._tokens:
            return
        self._tokens.discard(token)
        self._requests[token.link] -= 1
        if isinstance(outcome, Exception):
            for batch in token.batches:
                self._retry(batch, self._cluster.now_ms)
            return
        response: ProduceResponse = outcome
        answers = {
            (topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        for batch in token.batches:
            answer = answers.get((batch.queue.topic, batch.queue.partition))
            if answer is None:
                self._judge(batch, ErrorCode.CORRUPT_MESSAGE, None, -1)
            else:
                stamp_ms = answer.log_append_time_ms
                self._judge(
                    batch, answer.error_code, answer.error_message, stamp_ms, answer.base_offset
                )

    def _judge(
        self, batch: Batch, code: int, message: str | None, append_time_ms: int, offset: int = -1
    ) -> None:
        queue = batch.queue
        judgement = verdicts.produce_verdict(code)
        if judgement is Verdict.DONE:
            self._acknowledge(batch, offset, append_time_ms)
            return
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not queue.is_first(batch):
            judgement = Verdict.RETRY
        if judgement is Verdict.MOVED:
            self._cluster.is_stale = True
        if judgement in (Verdict.RETRY, Verdict.MOVED) and batch.retries < self._config.retries:
            pause_ms = self._cluster.backoff(batch.retries + 1)
            self._retry(batch, self._cluster.now_ms + pause_ms)
            return
        detail = f" ({message})" if message else ""
        context = f"record for {queue.topic} [{queue.partition}]{detail}"
        if judgement in (Verdict.RETRY, Verdict.MOVED):
            judgement = Verdict.ABORT
        error = verdicts.failure(judgement, code, context)
        self._fail(batch, error, fatal=judgement in (Verdict.FATAL, Verdict.FENCED))

    def _retry(self, batch: Batch, not_before_ms: float) -> None:
        batch.queue.put_back(batch, not_before_ms)
        self._active[batch.queue] = None

    def _acknowledge(self, batch: Batch, offset: int, append_time_ms: int) -> None:
        queue = batch.queue
        self._drop(batch)
        for receipt in batch.receipts:
            kind, stamp_ms = TIMESTAMP_CREATE_TIME, receipt.timestamp_ms
            if append_time_ms >= 0:
                kind, stamp_ms = TIMESTAMP_LOG_APPEND_TIME, append_time_ms
            place = offset + receipt.place if offset >= 0 else NO_OFFSET
            delivered = DeliveredMessage(
                queue.topic,
                queue.partition,
                place,
                receipt.key,
                receipt.value,
                receipt.headers,
                stamp_ms,
                kind,
            )
            self.deliveries.append((receipt.callback, None, delivered))

    def _expire(self, queue: PartitionQueue, now_ms: float) -> None:
        while queue.waiting and queue.waiting[0].deadline_ms <= now_ms:
            context = (
                f"record for {queue.topic} [{queue.partition}] was not delivered in"
                f" 'delivery.timeout.ms': {self._cluster.last_error}"
            )
            error = AbortableError(ErrorCode.REQUEST_TIMED_OUT, context)
            self._fail(queue.waiting[0], error, fatal=False)

    def _fail(self, batch: Batch, error: Exception, *, fatal: bool) -> None:
        self._drop(batch)
        told = error if isinstance(error, KafkaError) else _told(error)
        self._tell(batch.queue, batch.receipts, told)
        self._on_error(error, fatal)

    def _tell(self, queue: PartitionQueue, receipts: Iterable[Receipt], error: KafkaError) -> None:
        for receipt in receipts:
            failed = DeliveredMessage(
                queue.topic,
                queue.partition,
                NO_OFFSET,
                receipt.key,
                receipt.value,
                receipt.headers,
                receipt.timestamp_ms,
                error=error,
            )
            self.deliveries.append((receipt.callback, error, failed))

    def _drop(self, batch: Batch) -> None:
        queue = batch.queue
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        else:
            queue.waiting.remove(batch)
        self.outstanding -= batch.count
        self._bytes -= len(batch.data)
        if queue.is_idle:
            self._active.pop(queue, None)

    # The transaction's ends.

    @property
    def has_in_flight(self) -> bool:
        return bool(self._tokens)

    def purge(self, error: KafkaError) -> None:
        """Drop what has not been sent; the transaction is going to be aborted."""
        for queue in list(self._active):
            for batch in list(queue.waiting):
                self._drop(batch)
                self._tell(queue, batch.receipts, error)
            self.outstanding -= queue.builder.count
            self._tell(queue, queue.receipts, error)
            # A new one in any case: an interrupt may have struck while records were added.
            queue.builder = type(queue.builder)()
            queue.receipts = []
            if queue.is_idle:
                self._active.pop(queue, None)
        self.linger_until_ms = FOREVER

    def start_epoch(self, producer_id: int, epoch: int) -> None:
        """Go on under another pair: sequences begin anew in every partition."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.pair = PreparedTxnState(producer_id, epoch)
        for queue in self._touched:
            queue.restart_sequences()
        self._touched.clear()

    def end_transaction(self) -> None:
        """Before KIP-890 every transaction names its partitions again."""
        self.has_sent = False
        if not self.is_version_2:
            for queue in self._touched:
                queue.is_added = False

    def recall_in_flight(self) -> None:
        """Answers may have been lost: nothing is in flight any more, everything waits again.

        An interrupt can strike between any two instructions, so that nothing is taken on trust:
        what is outstanding is counted anew.
        """
        self._tokens.clear()
        self._requests.clear()
        self.outstanding = self._bytes = 0
        for queue in list(self._touched):
            for batch in list(queue.in_flight):
                queue.put_back(batch, 0)
            self._active[queue] = None
            self.outstanding += queue.builder.count + sum(batch.count for batch in queue.waiting)
            self._bytes += sum(len(batch.data) for batch in queue.waiting)


def _told(error: Exception) -> KafkaError:
    return verdicts.plain_failure(ErrorCode.UNSUPPORTED_VERSION, str(error))
