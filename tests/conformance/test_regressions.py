"""Bugs that others shipped, and traps of KIP-939, each once over the wire.

R numbers are the list of bugs in other brokers and clients; T- numbers the traps of two-phase commit.
What has its test elsewhere (logs, coordinators, stores) is not repeated here.
"""

import socket
import struct
import threading

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from dualwrite import TransactionAdmin, TwoPhaseProducer
from dualwrite.broker import Broker, BrokerProcess
from dualwrite.connection import Connection
from dualwrite.wire.frame import encode_request
from dualwrite.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from dualwrite.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from dualwrite.wire.messages.metadata import MetadataRequest
from dualwrite.wire.messages.sasl_handshake import SaslHandshakeRequest
from dualwrite.wire.records import EndMarker, batches
from tests.conformance.conftest import create_topic
from tests.conformance.test_error_codes import FENCED, NONE
from tests.dualwrite.world import read_committed, unique


def producer(bootstrap, transactional_id, *, two_phase=True, **more):
    return TwoPhaseProducer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.two.phase.commit.enable": two_phase,
            "linger.ms": 0,
            **more,
        }
    )


@pytest.fixture(scope="module")
def bootstrap():
    with Broker() as broker:
        create_topic(broker.bootstrap_servers)
        yield broker.bootstrap_servers


def test_r6_every_correlation_id_gets_exactly_one_answer(bootstrap):
    """KAFKA-17877: a callback fired twice."""
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(b"".join(encode_request(MetadataRequest(topics=[]), 9, n) for n in range(200)))
        stream = raw.makefile("rb")
        found = []
        for _ in range(200):
            size, correlation_id = struct.unpack(">ii", stream.read(8))
            stream.read(size - 4)
            found.append(correlation_id)
        # Whatever was answered twice would come before this.
        raw.sendall(encode_request(MetadataRequest(topics=[]), 9, 777))
        found.append(struct.unpack(">ii", stream.read(8))[1])
        stream.close()

    assert found == [*range(200), 777]


def test_r7_transactions_without_a_pause_lose_nothing(new_talk, bootstrap):
    """ydb 52731: an EndTxn during the completion of the one before was an empty success."""
    talk = new_talk(bootstrap)
    pair = talk.begin()
    for _ in range(100):
        assert talk.produce(pair, 12) == NONE
        code, pair = talk.end(pair, 5, commit=True)
        assert code == NONE

    assert len(read_committed(bootstrap, "topic")) == 100


def test_r8_transaction_without_records_commits(talk):
    """ydb 51053: AddPartitionsToTxn and EndTxn, with nothing produced in between."""
    pair = talk.begin()
    assert talk.add_partitions(pair, 3) == [NONE]

    assert talk.end(pair, 4, commit=True)[0] == NONE


def test_r14_delayed_fetch_knows_of_the_abort_in_between(bootstrap):
    """KAFKA-5355: a long poll kept the list of aborted transactions of the moment it began."""
    topic = unique("r14")
    writer = producer(bootstrap, topic, two_phase=False)
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"aborted", partition=0)
    writer.flush()
    part = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, isolation_level=1,
        topics=[FetchTopic(topic=topic, partitions=[part])],
    )  # fmt: skip
    answers = []

    def fetch():
        with Connection({"bootstrap.servers": bootstrap}) as connection:
            answers.append(connection.send(request, 12))

    reader = threading.Thread(target=fetch)
    reader.start()
    writer.abort_transaction()
    reader.join()
    writer.close()

    answer = answers[0].responses[0].partitions[0]
    assert answer.last_stable_offset == 2
    assert [aborted.first_offset for aborted in answer.aborted_transactions] == [0]


def test_r11_r17_aborted_records_are_never_seen_however_late_the_abort(bootstrap):
    """Redpanda 7819 and KoP 1283: read_committed showed data whose abort came later."""
    topic = unique("r17")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": True,
        }
    )
    writer = producer(bootstrap, topic, two_phase=False)
    writer.init_transactions()
    seen = []
    for number in range(5):
        writer.begin_transaction()
        writer.produce(topic, f"aborted-{number}".encode(), partition=0)
        writer.flush()
        consumer.assign([TopicPartition(topic, 0, 0)])
        # A reader is at work while the transaction is open, longer than any cache would last.
        seen += [m.value() for m in consumer.consume(10, 0.3) if not m.error()]
        writer.abort_transaction()
    writer.begin_transaction()
    writer.produce(topic, b"committed", partition=0)
    writer.commit_transaction()
    writer.close()
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen += [m.value() for m in consumer.consume(1, 20) if not m.error()]
    consumer.close()

    assert set(seen) == {b"committed"}


def test_r16_timed_out_transaction_is_no_dead_end():
    """librdkafka 3297: after the broker's abort by timeout the same id works again."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(settings=settings) as broker:
        config = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "r16",
            "transaction.timeout.ms": 1000,
        }
        late = Producer(config)
        late.init_transactions()
        late.begin_transaction()
        late.produce("r16", b"late", partition=0)
        late.flush()
        admin = TransactionAdmin({"bootstrap.servers": broker.bootstrap_servers})
        while admin.describe_transactions(["r16"])["r16"].state == "Ongoing":
            late.poll(0.05)
        admin.close()
        with pytest.raises(KafkaException):
            late.commit_transaction()
        again = Producer(config)
        again.init_transactions()
        again.begin_transaction()
        again.produce("r16", b"again", partition=0)
        again.commit_transaction()

        assert [value for _, value in read_committed(broker.bootstrap_servers, "r16")] == [b"again"]


def test_r18_a_buffer_that_changes_after_produce_does_not_change_the_record(bootstrap):
    """CVE-2026-35554: a reused buffer put one record's bytes into another's place."""
    topic = unique("r18")
    writer = producer(bootstrap, topic, two_phase=False)
    writer.init_transactions()
    writer.begin_transaction()
    buffer = bytearray(b"first")
    writer.produce(topic, buffer, partition=0)
    buffer[:] = b"other"
    writer.produce(topic, memoryview(buffer), partition=0)
    buffer[:] = b"third"
    writer.commit_transaction()
    writer.close()

    assert [value for _, value in read_committed(bootstrap, topic)] == [b"first", b"other"]


def test_t_3_acknowledged_records_of_a_two_phase_producer_survive_and_can_be_ended():
    """There is no prepare request: every acknowledgement is a vote, and what died open stays open."""
    with BrokerProcess() as broker:
        writer = producer(broker.bootstrap_servers, "t-3")
        writer.init_transactions(keep_prepared_txn=True)
        writer.begin_transaction()
        writer.produce("t-3", b"vote", partition=0)
        writer.flush()
        broker.kill()
        broker.restart()
        admin = TransactionAdmin({"bootstrap.servers": broker.bootstrap_servers})
        found = admin.describe_transactions(["t-3"])["t-3"]
        uncommitted = read_committed(broker.bootstrap_servers, "t-3", "read_uncommitted")
        admin.force_terminate_transaction("t-3")
        after = admin.describe_transactions(["t-3"])["t-3"]
        admin.close()
        writer.close()

        assert found.state == "Ongoing"
        assert [value for _, value in uncommitted] == [b"vote"]
        assert after.state != "Ongoing"
        assert read_committed(broker.bootstrap_servers, "t-3") == []


def test_t_7_records_in_doubt_can_not_be_deleted(bootstrap):
    """Retention and DeleteRecords stop at the first record whose outcome is open."""
    topic = unique("t-7")
    writer = producer(bootstrap, topic)
    writer.init_transactions(keep_prepared_txn=True)
    writer.begin_transaction()
    writer.produce(topic, b"in doubt", partition=0)
    state = writer.prepare_transaction()
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(offset=-1)])],
        timeout_ms=5000,
    )
    with Connection({"bootstrap.servers": bootstrap}) as connection:
        answer = connection.send(request).topics[0].partitions[0]
    writer.complete_transaction(state)
    writer.close()

    assert answer.low_watermark <= 0
    assert [value for _, value in read_committed(bootstrap, topic)] == [b"in doubt"]


@pytest.mark.two_phase
def test_t_11_delayed_end_of_a_recovered_transaction_does_not_end_the_next(talk):
    """The client's pair moves again with EndTxn, although keepPreparedTxn has moved it before."""
    answer = talk.init(6, enable2_pc=True)
    talk.produce((answer["producer_id"], answer["producer_epoch"]), 12)
    kept = talk.init(6, enable2_pc=True, keep_prepared_txn=True)
    client = (kept["producer_id"], kept["producer_epoch"])
    _, after = talk.end(client, 5, commit=True)
    assert talk.produce(after, 12) == NONE

    assert talk.end(client, 5, commit=True)[0] == FENCED
    assert talk.end(client, 5, commit=False)[0] == FENCED
    assert talk.end(after, 5, commit=True)[0] == NONE


def test_t_13_a_reader_that_skips_tags_sees_an_ordinary_open_transaction(bootstrap):
    """The state log keeps Kafka's format: an older broker could still finish the transaction."""
    topic = unique("t-13")
    writer = producer(bootstrap, topic)
    writer.init_transactions(keep_prepared_txn=True)
    writer.begin_transaction()
    writer.produce(topic, b"x", partition=0)
    state = writer.prepare_transaction()
    second = producer(bootstrap, topic)
    second.init_transactions(keep_prepared_txn=True)
    records = [
        value
        for key, value in read_committed(bootstrap, "__transaction_state", "read_uncommitted")
        if key == b"\0\0" + len(topic).to_bytes(2, "big") + topic.encode()
    ]
    second.complete_transaction(state)
    second.close()
    writer.close()
    version, producer_id, epoch, timeout_ms, status = struct.unpack_from(">hqhib", records[-1])

    assert (version, status, timeout_ms) == (1, 1, 2_147_483_647)
    assert (producer_id, epoch) == (state.producer_id, state.epoch)


def test_p4_handshake_lists_the_mechanisms(tmp_path):
    """Several clients go on only if theirs is among them."""
    users = tmp_path / "users.toml"
    users.write_text('[users]\nalice = "wonderland"\n')
    users.chmod(0o600)
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "users.file": str(users)}
    with Broker(settings=settings) as broker:
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            raw.sendall(encode_request(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1, 7))
            size = struct.unpack(">i", raw.recv(4))[0]
            answer = raw.recv(size)

    assert b"SCRAM-SHA-256" in answer
    assert b"SCRAM-SHA-512" in answer


def test_markers_of_a_commit_lie_in_every_partition(bootstrap):
    """What readers depend on: one end marker per partition that the transaction touched."""
    topic = unique("markers")
    writer = producer(bootstrap, topic, two_phase=False)
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(topic, b"x", partition=0)
    writer.commit_transaction()
    writer.close()
    part = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[part])])
    with Connection({"bootstrap.servers": bootstrap}) as connection:
        data = bytes(connection.send(request, 12).responses[0].partitions[0].records)
    found = [(position, header) for position, header in batches(data) if header.is_control]

    assert len(found) == 1
    position, header = found[0]
    marker = EndMarker.parse(data[position : position + header.length])
    assert marker is not None
    assert marker.commit
