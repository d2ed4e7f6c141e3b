"""A cluster made up in memory: it answers a flow's requests by a script and moves the time itself.

Only the network and the clock are made up; every flow that runs here is the real one.
"""

from collections import deque
from typing import Any

from dualwrite.config import parse_config
from dualwrite.flows.steps import (
    FOREVER,
    Closed,
    Connect,
    Lost,
    Offer,
    Opened,
    Reply,
    Send,
    Woken,
)
from dualwrite.flows.transaction import TransactionFlows
from dualwrite.wire.codec import decode, encode
from dualwrite.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from dualwrite.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from dualwrite.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from dualwrite.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from dualwrite.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from dualwrite.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from dualwrite.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from dualwrite.wire.records import BatchHeader

NEWEST = {
    0: (0, 13),
    3: (0, 13),
    10: (0, 6),
    22: (0, 6),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    28: (0, 6),
}
KAFKA_3 = {
    0: (0, 9),
    3: (0, 12),
    10: (0, 4),
    22: (0, 4),
    24: (0, 3),
    25: (0, 3),
    26: (0, 3),
    28: (0, 3),
}

LOSE = object()
"""In place of an answer: the connection breaks and nobody knows whether the request arrived."""
REFUSE = object()
"""In place of an answer: the connection breaks before the broker has seen the request."""


class ScriptedCluster:
    """Brokers 1 to n. `say(RequestClass, answer, ...)` changes the next answers to that request.

    An answer is an error code, `LOSE`, a response, or a function of the request.
    """

    def __init__(self, nodes=1, partitions=1, version=2, versions=None):
        self.now_ms = 1_000.0
        self.offer = Offer(versions or NEWEST, 1, {"transaction.version": version})
        self.addresses = {node: (f"broker-{node}", 9092) for node in range(1, nodes + 1)}
        self.leaders = {p: 1 + p % nodes for p in range(partitions)}
        self.coordinator = 1
        self.down = set()
        self.up_at_ms = FOREVER
        self.seen = []  # (node, request, version)
        self.logs = {}  # partition -> list of batch headers, without repetitions
        self.pair = (7, 0)
        self.most_in_flight = 0
        self._script = {}
        self._bootstrap = {}
        self._sequences = {}

    def say(self, request_class, *answers):
        self._script.setdefault(request_class, deque()).extend(answers)

    def requests(self, request_class):
        return [request for _, request, _ in self.seen if type(request) is request_class]

    def names(self):
        """What was asked, in order, without looking around."""
        quiet = {"MetadataRequest", "FindCoordinatorRequest"}
        names = [type(request).__name__ for _, request, _ in self.seen]
        return [name.removesuffix("Request") for name in names if name not in quiet]

    def run(self, flows_or_cluster, flow, limit_ms=10**6):
        """Run the flow to its end; time passes only while nothing else happens."""
        cluster = getattr(flows_or_cluster, "cluster", flows_or_cluster)
        cluster.now_ms = self.now_ms
        deadline_ms = self.now_ms + limit_ms
        try:
            step = next(flow)
            while True:
                events = []
                self.most_in_flight = max(
                    self.most_in_flight, sum(type(a) is Send for a in step.actions)
                )
                for action in step.actions:
                    events += self._act(action)
                if not events:
                    assert step.until_ms < FOREVER, f"stuck after {self.names()}"
                    self.now_ms = max(self.now_ms, step.until_ms)
                    if self.now_ms >= self.up_at_ms:
                        self.down, self.up_at_ms = set(), FOREVER
                    assert self.now_ms < deadline_ms, f"no end after {self.names()}"
                step = flow.send(Woken(self.now_ms, events))
        except StopIteration as finished:
            return finished.value

    def _act(self, action):
        match action:
            case Connect(node, address):
                self._bootstrap[node] = address
                if self._node(node) in self.down:
                    return [Closed(node, ConnectionRefusedError("down"))]
                return [Opened(node, self.offer)]
            case Send(node, request, version, token, _):
                return self._answer(node, request, version, token)
        return []

    def _node(self, link):
        if link > 0:
            return link
        for node, address in self.addresses.items():
            if address == self._bootstrap.get(link):
                return node
        return 1

    def _answer(self, link, request, version, token):
        node = self._node(link)
        if node in self.down:
            error = ConnectionResetError("down")
            return [Lost(token, error), Closed(link, error)]
        # The version must be able to carry what is asked, and the answer what is answered.
        request = decode(type(request), encode(request, version), version)
        self.seen.append((node, request, version))
        script = self._script.get(type(request))
        told = script.popleft() if script else None
        if callable(told):
            told = told(request)
        if told is REFUSE:
            error = ConnectionResetError("cut")
            return [Lost(token, error), Closed(link, error)]
        is_whole = told is not None and told is not LOSE and not isinstance(told, int)
        code = told if isinstance(told, int) else 0
        response = told if is_whole else self._usual(node, request, version, code)
        if told is LOSE:
            error = ConnectionResetError("cut")
            return [Lost(token, error), Closed(link, error)]
        return [Reply(token, decode(type(response), encode(response, version), version))]

    def _usual(self, node, request, version, code) -> Any:
        match request:
            case MetadataRequest():
                return self._metadata(request, version, code)
            case FindCoordinatorRequest():
                host, port = self.addresses[self.coordinator]
                if version >= 4:
                    key = request.coordinator_keys[0]
                    found = Coordinator(key, self.coordinator, host, port, code)
                    return FindCoordinatorResponse(coordinators=[found])
                return FindCoordinatorResponse(
                    error_code=code, node_id=self.coordinator, host=host, port=port
                )
            case InitProducerIdRequest():
                if not code:
                    self.pair = (self.pair[0], self.pair[1] + 1)
                return InitProducerIdResponse(
                    error_code=code, producer_id=self.pair[0], producer_epoch=self.pair[1]
                )
            case EndTxnRequest():
                if not code and version >= 5:
                    self.pair = (request.producer_id, request.producer_epoch + 1)
                    return EndTxnResponse(producer_id=self.pair[0], producer_epoch=self.pair[1])
                return EndTxnResponse(error_code=code)
            case ProduceRequest():
                return self._produce(node, request, code)
            case AddPartitionsToTxnRequest():
                return AddPartitionsToTxnResponse(
                    results_by_topic_v3_and_below=[
                        AddPartitionsToTxnTopicResult(
                            topic.name,
                            [AddPartitionsToTxnPartitionResult(p, code) for p in topic.partitions],
                        )
                        for topic in request.v3_and_below_topics
                    ]
                )
            case AddOffsetsToTxnRequest():
                return AddOffsetsToTxnResponse(error_code=code)
            case TxnOffsetCommitRequest():
                return TxnOffsetCommitResponse(
                    topics=[
                        TxnOffsetCommitResponseTopic(
                            name=topic.name,
                            partitions=[
                                TxnOffsetCommitResponsePartition(p.partition_index, code)
                                for p in topic.partitions
                            ],
                        )
                        for topic in request.topics
                    ]
                )
        raise AssertionError(f"no usual answer to {request}")

    def _metadata(self, request, version, code):
        topics = [
            MetadataResponseTopic(
                error_code=code,
                name=topic.name,
                partitions=[]
                if code
                else [
                    MetadataResponsePartition(partition_index=p, leader_id=leader)
                    for p, leader in self.leaders.items()
                ],
            )
            for topic in request.topics or []
        ]
        brokers = [MetadataResponseBroker(n, h, p) for n, (h, p) in self.addresses.items()]
        return MetadataResponse(brokers=brokers, topics=topics, cluster_id="scripted")

    def _produce(self, node, request, code):
        """As a leader does: sequences must follow each other, repetitions are answered again."""
        topics = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                header = BatchHeader.parse(data.records)
                one = code or self._append(node, data.index, header)
                answers.append(PartitionProduceResponse(index=data.index, error_code=one))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=topics)

    def _append(self, node, partition, header):
        if self.leaders[partition] != node:
            return 6
        log = self.logs.setdefault(partition, [])
        known = (header.producer_epoch, header.base_sequence)
        if known in [(h.producer_epoch, h.base_sequence) for h in log]:
            return 0
        mine = [h for h in log if h.producer_epoch == header.producer_epoch]
        expected = mine[-1].base_sequence + mine[-1].record_count if mine else 0
        if header.base_sequence != expected:
            return 45
        log.append(header)
        return 0


def flows_for(script, *, two_phase=False, **settings):
    """A producer without IO that talks to the script."""
    given = {
        "bootstrap.servers": "broker-1:9092",
        "transactional.id": "orders-0",
        "transaction.two.phase.commit.enable": two_phase,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    return TransactionFlows(parse_config(given, transactional=True), lambda count: 0)


def started(script, *, keep=False, **settings):
    flows = flows_for(script, **settings)
    script.run(flows, flows.init(keep))
    return flows


def put(script, flows, *values, partition=-1, callback=None, topic="t"):
    """Produce as the facades do."""
    if topic not in flows.cluster.topics:
        script.run(flows, flows.know_topic(topic))
    for value in values:
        if flows.sender.put(topic, None, value, partition, 1, None, callback, script.now_ms):
            script.run(flows, flows.pump())
