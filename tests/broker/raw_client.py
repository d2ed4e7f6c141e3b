"""A client that sends exactly what a test says, byte by byte if need be."""

import socket
import struct

from dualwrite.wire.codec import decode
from dualwrite.wire.frame import decode_response_header, encode_request
from dualwrite.wire.message import schema_of
from dualwrite.wire.messages import response_class
from dualwrite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from dualwrite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from dualwrite.wire.messages.init_producer_id import InitProducerIdRequest
from dualwrite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from dualwrite.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from dualwrite.wire.records import batches, build_batch, records_of


class RawClient:
    """One connection. `call` sends a request and gives the decoded response."""

    def __init__(self, bootstrap_servers: str, timeout: float = 20.0) -> None:
        host, port = bootstrap_servers.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self._correlation_id = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request, version, correlation_id=None):
        """Send a request; gives its correlation id."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        self.socket.sendall(encode_request(request, version, correlation_id, "raw"))
        return correlation_id

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, api_key, version):
        """The next response: its correlation id and its message."""
        frame = self.receive_frame()
        correlation_id, offset = decode_response_header(frame, api_key, version)
        return correlation_id, decode(response_class(api_key), frame, version, offset)

    def call(self, request, version):
        sent = self.send(request, version)
        received, response = self.receive(schema_of(type(request)).api_key, version)
        assert received == sent
        return response

    def is_closed(self) -> bool:
        """Whether the broker hangs up; waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self.socket.recv(size)
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # What most tests need

    def create_topic(self, name, partitions=1, **configs):
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        for key, value in configs.items():
            topic.configs.append(type_of_config()(name=key.replace("_", "."), value=str(value)))
        (result,) = self.call(CreateTopicsRequest(topics=[topic]), 7).topics
        return result

    def topic_id(self, name):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        return self.call(request, 12).topics[0].topic_id

    def init_producer(self, transactional_id=None, version=5, **fields):
        fields.setdefault("transaction_timeout_ms", 60_000)
        request = InitProducerIdRequest(transactional_id=transactional_id, **fields)
        return self.call(request, version)

    def produce(self, topic, data, *, partition=0, acks=-1, version=11, transactional_id=None):
        """Produce one batch; gives the partition's part of the response."""
        request = produce_request(
            topic, data, partition=partition, acks=acks, transactional_id=transactional_id
        )
        (shown,) = self.call(request, version).responses
        return shown.partition_responses[0]

    def end_txn(self, transactional_id, pair, *, commit=True, version=5):
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=commit,
        )
        return self.call(request, version)

    def fetch(self, topic, offset=0, *, partition=0, version=12, **fields):
        """Fetch one partition; gives the partition's part of the response."""
        response = self.call(fetch_request(topic, offset, partition=partition, **fields), version)
        return response.responses[0].partitions[0]


def type_of_config():
    from dualwrite.wire.messages.create_topics import CreatableTopicConfig

    return CreatableTopicConfig


def produce_request(topic, data, *, partition=0, acks=-1, transactional_id=None):
    part = PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[part])],
    )


def fetch_request(topic, offset=0, *, partition=0, max_partition_bytes=1 << 20, **fields):
    part = FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_partition_bytes
    )
    fields.setdefault("max_wait_ms", 0)
    fields.setdefault("min_bytes", 1)
    return FetchRequest(topics=[FetchTopic(topic=topic, partitions=[part])], **fields)


def batch(*values, pair=(-1, -1), sequence=-1, transactional=False, timestamp_ms=None, keys=None):
    """A batch of these values."""
    import time

    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    return build_batch(
        [(keys[i] if keys else None, value, None, now) for i, value in enumerate(values)],
        producer_id=pair[0],
        producer_epoch=pair[1],
        base_sequence=sequence,
        is_transactional=transactional,
    )


def values_of(part):
    """The values of all data records in a fetch response's partition."""
    found = []
    data = bytes(part.records or b"")
    for position, header in batches(data):
        if not header.is_control:
            found += [
                record.value for record in records_of(data[position : position + header.length])
            ]
    return found


def offsets_of(part):
    """(base offset, last offset, is control) of every batch."""
    data = bytes(part.records or b"")
    return [(h.base_offset, h.last_offset, h.is_control) for _, h in batches(data)]
