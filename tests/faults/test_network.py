"""A network that cuts, stalls, delays, slices and floods: nothing is lost, written twice or torn."""

import asyncio
import os
import random
import statistics
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import TwoPhaseProducer
from dualwrite.broker import Broker, BrokerProcess
from dualwrite.cli.bench.noise import Noise
from dualwrite.pytest_plugin import read_topic
from dualwrite.wire.api_keys import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.api_versions import ApiVersionsRequest
from dualwrite.wire.messages.end_txn import EndTxnRequest
from tests.broker.raw_client import RawClient, batch, fetch_request
from tests.dualwrite.waiting import wait_until
from tests.faults.proxy import Cut, FaultProxy, Hold, Once, Pass, Plan, Slow, Stall

SEED = 20_261_118
SHORT_TIMEOUTS = {"request.timeout.ms": 500, "socket.timeout.ms": 500}
MIB = 2**20


@pytest.fixture(scope="module")
def proxy():
    """A broker whose clients all come through the proxy, because it is what metadata names."""
    with FaultProxy() as made:
        address = f"PLAINTEXT://127.0.0.1:{made.port}"
        with Broker(settings={"advertised.listeners": address}) as broker:
            made.target = ("127.0.0.1", broker.port)
            yield made


@pytest.fixture(autouse=True)
def peace_afterwards(request):
    yield
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy").plan = Plan()


@pytest.fixture
def topic(proxy):
    name = f"topic-{random.randrange(10**9)}"
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    return name


def producer_of(proxy, name, **more):
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": name,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 50,
            "linger.ms": 0,
            **more,
        }
    )
    producer.init_transactions(timeout=60)
    return producer


class Sizes(Plan):
    """Learns the largest frame of an API in each direction."""

    def __init__(self):
        super().__init__()
        self.requests = {}
        self.responses = {}

    def on_request(self, api_key, frame):
        self.requests[api_key] = max(len(frame), self.requests.get(api_key, 0))
        return Pass()

    def on_response(self, api_key, frame):
        self.responses[api_key] = max(len(frame), self.responses.get(api_key, 0))
        return Pass()


def write_pair(producer, topic, number, before_end=None, *, commit=True):
    """One transaction with one record in each partition."""
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, f"{number:06d}-{partition}".encode(), partition=partition)
    if before_end is not None:
        producer.flush()
        before_end()
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def written(proxy, topic):
    return sorted(m.value().decode() for m in read_topic(topic, proxy.bootstrap_servers))


@pytest.mark.slow
@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.END_TXN], ids=lambda key: key.name)
@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
def test_reset_after_every_byte(proxy, topic, api_key, is_response):
    proxy.plan = sizes = Sizes()
    with producer_of(proxy, topic) as producer:
        write_pair(producer, topic, 0)
        size = (sizes.responses if is_response else sizes.requests)[api_key]
        for after_bytes in range(size + 1):
            proxy.plan = plan = Once(api_key, Cut(after_bytes), response=is_response)
            write_pair(producer, topic, after_bytes + 1)
            assert plan.happened.is_set()

    print(f"{size + 1} resets in {api_key.name}, {'response' if is_response else 'request'}")
    expected = [f"{number:06d}-{p}" for number in range(size + 2) for p in range(2)]
    assert written(proxy, topic) == expected


class OurWriter:
    """Pairs by our producer. It gets over all that a test here does to its connections."""

    def __init__(self, proxy, name, **settings):
        self._producer = producer_of(proxy, name, **settings)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._producer.close()

    def write_pair(self, topic, number, before_end=None, *, commit=True):
        write_pair(self._producer, topic, number, before_end, commit=commit)
        return "ok" if commit else "fail"


class ConfluentWriter:
    """Pairs by librdkafka, transactions of version 1. It reconnects, tries again and gives up by its
    own rules, so a pair may be there (ok), be not there (fail), or either (info).
    """

    def __init__(self, proxy, name, **settings):
        self._settings = {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": name,
            "linger.ms": 0,
            "reconnect.backoff.ms": 1,
            "reconnect.backoff.max.ms": 20,
            "retry.backoff.ms": 5,
            "retry.backoff.max.ms": 50,
            "log_level": 0,
            **{key: value for key, value in settings.items() if key != "request.timeout.ms"},
        }
        self._producer = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._producer = None

    def write_pair(self, topic, number, before_end=None):
        if self._producer is None:
            self._producer = Producer(self._settings)
            self._producer.init_transactions(60)
        is_ending = False
        try:
            self._producer.begin_transaction()
            for partition in range(2):
                value = f"{number:06d}-{partition}".encode()
                self._producer.produce(topic, value, partition=partition)
            is_ending = self._producer.flush(60) == 0
            if before_end is not None:
                before_end()
            return self._commit()
        except KafkaException as failed:
            if failed.args[0].txn_requires_abort():
                self._producer.abort_transaction(60)
                return "fail"
            self._producer = None
            return "info" if is_ending else "fail"

    def _commit(self):
        while True:
            try:
                self._producer.commit_transaction(60)
            except KafkaException as failed:
                if not failed.args[0].retriable():
                    raise
            else:
                return "ok"


def judge(told, values):
    """Nothing lost, nothing twice, nothing torn; by number of the pair what its writer was told."""
    assert len(values) == len(set(values)), "twice"
    for number, outcome in told.items():
        pair = {f"{number:06d}-{partition}" for partition in range(2)}
        found = pair & set(values)
        assert found in (pair, set()), f"torn: {number}, {outcome}"
        assert outcome != "ok" or found, f"lost: {number}"
        assert outcome != "fail" or not found, f"said to have failed: {number}"
    assert {int(value.partition("-")[0]) for value in values} <= set(told), "of nobody"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "api_key",
    [ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN],
    ids=lambda key: key.name,
)
@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
def test_reset_after_every_byte_under_version_1(proxy, topic, api_key, is_response):
    proxy.plan = sizes = Sizes()
    with ConfluentWriter(proxy, topic) as writer:
        told = {0: writer.write_pair(topic, 0)}
        assert ApiKey.ADD_PARTITIONS_TO_TXN in sizes.requests, "these are version 2"
        size = (sizes.responses if is_response else sizes.requests)[api_key]
        for after_bytes in range(size + 1):
            proxy.plan = plan = Once(api_key, Cut(after_bytes), response=is_response)
            told[after_bytes + 1] = writer.write_pair(topic, after_bytes + 1)
            assert plan.happened.is_set()
        proxy.plan = Plan()
        told[size + 2] = writer.write_pair(topic, size + 2)

    where = "response" if is_response else "request"
    outcomes = dict(Counter(told.values()))
    print(f"{size + 1} resets in {api_key.name}, {where}, version 1: {outcomes}")
    assert told[size + 2] == "ok"
    judge(told, written(proxy, topic))


@pytest.mark.parametrize("held_commits", [True, False], ids=["commit", "abort"])
def test_delayed_end_does_not_touch_the_next_transaction(proxy, topic, held_commits):
    """The anomaly that Jepsen found in the protocol of old: KIP-890's epochs refuse the late EndTxn."""
    with RawClient(proxy.bootstrap_servers) as first, RawClient(proxy.bootstrap_servers) as second:
        mine = first.init_producer(topic)
        pair = (mine.producer_id, mine.producer_epoch)
        one = batch(b"one", pair=pair, sequence=0, transactional=True)
        assert first.produce(topic, one, version=12, transactional_id=topic).error_code == 0
        proxy.plan = held = Once(ApiKey.END_TXN, Hold())
        late = EndTxnRequest(
            transactional_id=topic,
            producer_id=pair[0],
            producer_epoch=pair[1],
            committed=held_commits,
        )
        first.send(late, 5)
        assert held.happened.wait(30)

        # No answer: the client tries again on another connection, and goes on.
        answer = second.end_txn(topic, pair, commit=held_commits)
        assert answer.error_code == 0
        next_pair = (answer.producer_id, answer.producer_epoch)
        two = batch(b"two", pair=next_pair, sequence=0, transactional=True)
        assert second.produce(topic, two, version=12, transactional_id=topic).error_code == 0
        assert proxy.release() == 1
        _, refused = first.receive(ApiKey.END_TXN, 5)

        assert refused.error_code in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
        )
        assert second.fetch(topic, isolation_level=1).last_stable_offset == 2  # two is still open
        assert second.end_txn(topic, next_pair, commit=not held_commits).error_code == 0
    expected = ["one"] if held_commits else ["two"]
    assert written(proxy, topic) == expected


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.END_TXN], ids=lambda key: key.name)
@pytest.mark.parametrize("is_response", [False, True], ids=["request", "response"])
def test_half_open_connection(proxy, topic, api_key, is_response):
    """The peer is silent and the connection stays: only a timeout can tell."""
    with producer_of(proxy, topic, **SHORT_TIMEOUTS) as producer:
        write_pair(producer, topic, 0)
        proxy.plan = plan = Once(api_key, Hold(), response=is_response)
        write_pair(producer, topic, 1)
        assert plan.happened.is_set()
        write_pair(producer, topic, 2)
        proxy.release()
        write_pair(producer, topic, 3)

    assert written(proxy, topic) == [f"{n:06d}-{p}" for n in range(4) for p in range(2)]


@pytest.mark.parametrize(
    ("writer_of", "api_key"),
    [
        (OurWriter, ApiKey.PRODUCE),
        (OurWriter, ApiKey.END_TXN),
        # Not its EndTxn: under version 1 a late one ends whatever is open then, in Kafka too.
        (ConfluentWriter, ApiKey.PRODUCE),
    ],
    ids=["our Produce", "our EndTxn", "librdkafka's Produce"],
)
def test_a_connection_that_stalls_for_longer_than_its_client_waits(
    proxy, topic, writer_of, api_key
):
    """What was sent on it arrives when the client has done the same on another, and has begun anew."""
    told = {}
    with writer_of(proxy, topic, **SHORT_TIMEOUTS) as writer:
        told[0] = writer.write_pair(topic, 0)
        proxy.plan = plan = Once(api_key, Stall())
        for number in (1, 2):
            told[number] = writer.write_pair(topic, number)
        assert plan.happened.is_set()
        released = []
        # A late end would commit what is to be aborted, a late record be committed a second time.
        how = {"commit": False} if api_key == ApiKey.END_TXN else {}
        told[3] = writer.write_pair(topic, 3, lambda: released.append(proxy.release()), **how)
        told[4] = writer.write_pair(topic, 4)

    assert released == [1]
    print(f"a stall in {api_key.name}: {dict(Counter(told.values()))}")
    assert told[0] == told[4] == "ok"
    judge(told, written(proxy, topic))


class SilentProduce(Once):
    """The answer to the first Produce is held back; says when EndTxn comes by."""

    def __init__(self):
        super().__init__(ApiKey.PRODUCE, Hold(), response=True)
        self.ended = threading.Event()

    def on_request(self, api_key, frame):
        if api_key == ApiKey.END_TXN:
            self.ended.set()
        return Pass()


def test_an_abort_waits_for_batches_under_way(proxy, topic):
    """A batch that arrived after the marker would belong to no transaction."""
    with producer_of(proxy, topic) as producer:
        proxy.plan = plan = SilentProduce()
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(0.1) == 1
        assert plan.happened.wait(30)
        aborting = threading.Thread(target=producer.abort_transaction)
        aborting.start()
        assert not plan.ended.wait(0.5)
        proxy.release()
        aborting.join()
        assert plan.ended.is_set()

    assert written(proxy, topic) == []


def test_one_byte_at_a_time(proxy, topic):
    proxy.plan = Slow(0, slice_bytes=1)
    with producer_of(proxy, topic) as producer:
        for number in range(3):
            write_pair(producer, topic, number)

    assert written(proxy, topic) == [f"{n:06d}-{p}" for n in range(3) for p in range(2)]


def test_a_narrow_network(proxy, topic):
    """Less than a megabyte a second, both ways and for readers too."""
    values = [b"%d" % number + bytes(50_000) for number in range(4)]
    proxy.plan = Slow(0, slice_bytes=1000, pause_s=0.001)
    with producer_of(proxy, topic) as producer:
        for value in values:
            producer.begin_transaction()
            for partition in range(2):
                producer.produce(topic, value, partition=partition)
            producer.commit_transaction()

    found = [m.value() for m in read_topic(topic, proxy.bootstrap_servers)]
    assert found == values + values


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_consumers_that_do_not_read_cost_bounded_memory():
    answer_bytes, consumers = 16 * MIB, 40
    with BrokerProcess() as broker, ExitStack() as stack:
        filler = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
        for _ in range(answer_bytes // 2**14):
            filler.produce("big", b"x" * 2**14)
            filler.poll(0)
        assert filler.flush(60) == 0
        before = resident_bytes(broker.pid)
        for _ in range(consumers):
            client = stack.enter_context(RawClient(broker.bootstrap_servers))
            fields = {"max_partition_bytes": answer_bytes, "max_bytes": answer_bytes}
            for _ in range(4):
                client.send(fetch_request("big", **fields), 12)
        with producer_of(broker, "healthy") as producer:
            for number in range(20):
                producer.begin_transaction()
                producer.produce("healthy", b"%d" % number, partition=0)
                producer.commit_transaction()
        grown = resident_bytes(broker.pid) - before
        wanted = 4 * consumers * answer_bytes
        print(f"{wanted // MIB} MiB asked for and not read: {grown // MIB} MiB more memory")

        assert grown < 256 * MIB
        found = read_topic("healthy", broker.bootstrap_servers)
        assert [m.value() for m in found] == [b"%d" % number for number in range(20)]


def durations(broker, name, count):
    found = []
    with producer_of(broker, name) as producer:
        for number in range(count):
            started = time.perf_counter()
            producer.begin_transaction()
            producer.produce(name, b"%d" % number, partition=0)
            producer.commit_transaction()
            found.append((time.perf_counter() - started) * 1000)
    return found


@pytest.mark.slow
def test_healthy_clients_work_beside_slow_ones_and_garbage():
    print(f"seed {SEED}")
    count = 150
    with BrokerProcess() as broker:
        quiet = durations(broker, "quiet", count)
        with Noise(broker.port, slow=300, garbage=2, seed=SEED) as noise:
            noisy = durations(broker, "noisy", count)
        for name, found in (("quiet", quiet), ("noisy", noisy)):
            p99 = statistics.quantiles(found, n=100)[98]
            print(f"{name}: p50 {statistics.median(found):.2f} ms, p99 {p99:.2f} ms")
        print(f"{noise.sent} connections with garbage")

        assert noise.sent > 0
        for name in ("quiet", "noisy"):
            found = [m.value() for m in read_topic(name, broker.bootstrap_servers)]
            assert found == [b"%d" % number for number in range(count)]


class Storm:
    """Clients that all connect at once, ask for something and hang up, again and again until it is
    over.
    """

    CLIENTS = 1000

    def __init__(self, port):
        self._port = port
        self._over = threading.Event()
        self.connections = 0

    def run(self):
        asyncio.run(self._run())

    async def _run(self):
        while not self._over.is_set():
            await asyncio.gather(*(self._connect() for _ in range(self.CLIENTS)))

    async def _connect(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(encode_request(ApiVersionsRequest(), 3, 1, "storm"))
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        self.connections += 1
        writer.transport.abort()

    def end(self):
        self._over.set()


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_healthy_clients_work_in_a_storm_of_connections():
    """As when a network comes back: everybody is answered, and nothing of it stays."""
    count = 30
    with BrokerProcess() as broker, ThreadPoolExecutor(1) as pool:
        durations(broker, "storm", 1)
        before = descriptors(broker.pid)
        storm = Storm(broker.port)
        raging = pool.submit(storm.run)
        try:
            found = durations(broker, "storm", count)
        finally:
            storm.end()
        raging.result(120)
        print(
            f"{storm.connections:,} connections, transactions: p50 {statistics.median(found):.1f} ms"
        )

        assert storm.connections >= Storm.CLIENTS
        wait_until(lambda: descriptors(broker.pid) <= before)
        values = [int(m.value()) for m in read_topic("storm", broker.bootstrap_servers)]
        assert values == [0, *range(count)]
