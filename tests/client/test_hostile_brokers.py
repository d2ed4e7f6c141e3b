"""Servers that answer with nonsense, with silence, or not at all: typed errors, no hang, no leak."""

import contextlib
import random
import socket
import threading

import pytest

from dualwrite import ConfigurationError, DualWriteError, TransactionAdmin, TwoPhaseProducer
from dualwrite.broker import Broker
from dualwrite.connection import Connection
from dualwrite.failures import AbortableError, KafkaTimeout
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.frame import decode_request_header, encode_response
from dualwrite.wire.messages import response_class
from dualwrite.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from tests.faults.proxy import FaultProxy, Hold, Once


class HostileBroker:
    """Accepts connections and answers every request with what `answer(frame)` returns."""

    def __init__(self, answer):
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def servers(self):
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            while True:
                size = connection.recv(4, socket.MSG_WAITALL)
                if len(size) < 4:
                    return
                frame = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                answer = self._answer(frame)
                if answer is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for connection in self._open:
            connection.close()


def sane_first(then):
    """Answers ApiVersions properly and everything else by `then`."""

    def answer(frame):
        header, _ = decode_request_header(frame)
        if header.api_key != 18:
            return then(frame, header)
        keys = [ApiVersion(key, 0, 99) for key in range(80)]
        response = ApiVersionsResponse(
            api_keys=keys,
            finalized_features_epoch=1,
            finalized_features=[FinalizedFeatureKey("transaction.version", 2, 2)],
        )
        return encode_response(response, header.api_version, header.correlation_id)

    return answer


NONSENSE = {
    "text": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "huge": b"\x7f\xff\xff\xff",
    "negative": b"\xff\xff\xff\xff",
    "empty": b"\0\0\0\0",
    "short": b"\0\0\0\x02ab",
    "zeros": b"\0\0\0\x40" + bytes(64),
    "ones": b"\0\0\0\x40" + b"\xff" * 64,
}


@pytest.mark.parametrize("kind", [*NONSENSE, "closed"])
@pytest.mark.parametrize("when", ["at once", "later"])
def test_nonsense_is_a_typed_error(kind, when):
    nonsense = NONSENSE.get(kind)
    answer = (lambda frame: nonsense) if when == "at once" else sane_first(lambda *_: nonsense)
    with HostileBroker(answer) as broker:
        config = {"bootstrap.servers": broker.servers, "retry.backoff.ms": 10}
        producer = TwoPhaseProducer({**config, "transactional.id": "t"})
        with producer, pytest.raises(DualWriteError):
            producer.init_transactions(timeout=0.3)
        admin = TransactionAdmin({**config, "max.block.ms": 200})
        with admin, pytest.raises(DualWriteError):
            admin.cluster_id()


def test_silence_is_a_timeout():
    with HostileBroker(lambda frame: b"") as broker:
        config = {"bootstrap.servers": broker.servers, "transactional.id": "t"}
        with TwoPhaseProducer(config) as producer, pytest.raises(KafkaTimeout):
            producer.init_transactions(timeout=0.2)


@pytest.mark.parametrize("seed", range(15))
def test_random_bodies_in_proper_frames(seed):
    """Every answer has the right header and a body of random bytes, or a proper one cut or bent."""
    chance = random.Random(seed)

    def then(frame, header):
        body = chance.randbytes(chance.randrange(40))
        if chance.random() < 0.5:
            proper = encode_response(
                response_class(header.api_key)(), header.api_version, header.correlation_id
            )[8:]
            body = bytearray(proper)
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
        content = header.correlation_id.to_bytes(4, "big") + bytes(body)
        return len(content).to_bytes(4, "big") + content

    with HostileBroker(sane_first(then)) as broker:
        config = {"bootstrap.servers": broker.servers, "retry.backoff.ms": 5}
        producer = TwoPhaseProducer({**config, "transactional.id": "t"})
        with producer, pytest.raises(DualWriteError):
            producer.init_transactions(timeout=0.1)


def test_a_broker_without_the_versions_we_need():
    def answer(frame):
        header, _ = decode_request_header(frame)
        response = ApiVersionsResponse(api_keys=[ApiVersion(18, 0, 3)])
        return encode_response(response, header.api_version, header.correlation_id)

    with HostileBroker(answer) as broker:
        config = {"bootstrap.servers": broker.servers, "transactional.id": "t"}
        with (
            TwoPhaseProducer(config) as producer,
            pytest.raises(ConfigurationError, match="offers"),
        ):
            producer.init_transactions(timeout=5)


def test_a_raw_connection_that_breaks_is_a_connection_error():
    def answer(frame):
        header, _ = decode_request_header(frame)
        if header.correlation_id > 1:
            return None
        response = ApiVersionsResponse(api_keys=[ApiVersion(18, 0, 3)])
        return encode_response(response, header.api_version, header.correlation_id)

    with HostileBroker(answer) as broker, Connection(broker.servers) as connection:
        assert connection.offer().versions == {18: (0, 3)}
        with pytest.raises(ConnectionError):
            connection.send(ApiVersionsRequest("x", "1"), version=3)


def test_a_leader_that_falls_silent_costs_the_transaction_but_not_the_producer(name):
    """delivery.timeout.ms holds for records that were sent and are never answered."""
    with FaultProxy() as proxy:
        address = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with Broker(settings={"advertised.listeners": address}) as broker:
            proxy.target = ("127.0.0.1", broker.port)
            producer = TwoPhaseProducer(
                {
                    "bootstrap.servers": f"127.0.0.1:{proxy.port}",
                    "transactional.id": name,
                    "delivery.timeout.ms": 1_000,
                }
            )
            with producer:
                producer.init_transactions(timeout=30)
                producer.begin_transaction()
                proxy.plan = Once(ApiKey.PRODUCE, Hold())
                producer.produce(name, b"1")
                with pytest.raises(AbortableError, match=r"delivery\.timeout\.ms"):
                    producer.commit_transaction(timeout=60)
                producer.abort_transaction()
                producer.begin_transaction()
                producer.produce(name, b"2")
                producer.commit_transaction()
            found = [m.value() for m in read_topic(name, broker.bootstrap_servers)]
    assert found == [b"2"]
