"""What survives SIGKILL of the broker and of its clients."""

import subprocess
import sys
import threading

import pytest
from confluent_kafka import Producer

from dualwrite.broker import Broker, BrokerProcess
from dualwrite.broker.storage.errors import DataDirInUse
from dualwrite.pytest_plugin import read_topic
from tests.broker.raw_client import RawClient, batch, values_of


@pytest.fixture
def process(tmp_path):
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def test_a_folder_of_the_same_name_is_not_taken_for_the_package(tmp_path, monkeypatch):
    """As in the folder that holds the checkout."""
    (tmp_path / "dualwrite").mkdir()
    monkeypatch.chdir(tmp_path)

    with BrokerProcess() as running:
        assert "listening on" in running.output


def test_an_idempotent_producer_loses_and_repeats_nothing_over_kills(process):
    total, kills = 3_000, 3
    producer = Producer(
        {
            "bootstrap.servers": process.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )
    delivered = []
    failed = []
    half = threading.Semaphore(0)

    def on_delivery(error, message):
        (failed if error else delivered).append(message.value())
        if len(delivered) % (total // (kills + 1)) == 0:
            half.release()

    with RawClient(process.bootstrap_servers) as client:
        client.create_topic("numbers")
    for number in range(total):
        producer.produce("numbers", value=b"%d" % number, partition=0, on_delivery=on_delivery)
        producer.poll(0)
        if number % (total // (kills + 1)) == total // (kills + 1) - 1 and number < total - 1:
            while not half.acquire(blocking=False):
                producer.poll(0.05)
            process.kill()
            process.restart()
    assert producer.flush(60) == 0

    assert failed == []
    found = [m.value() for m in read_topic("numbers", process.bootstrap_servers)]
    assert found == [b"%d" % number for number in range(total)]


def test_an_open_transaction_goes_on_after_a_kill_of_the_broker(process):
    producer = Producer(
        {
            "bootstrap.servers": process.bootstrap_servers,
            "transactional.id": "orders",
            "reconnect.backoff.max.ms": 100,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", value=b"before", partition=0)
    assert producer.flush(20) == 0

    process.kill()
    process.restart()
    producer.produce("orders", value=b"after", partition=0)
    producer.commit_transaction(30)

    found = [m.value() for m in read_topic("orders", process.bootstrap_servers)]
    assert found == [b"before", b"after"]


# In processes of their own: on a lost connection these clients leave sockets to the collector.
KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
producer = KafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="orders",
                         reconnect_backoff_max_ms=100, max_block_ms=60000)
producer.init_transactions()
producer.begin_transaction()
producer.send("orders", value=b"before", partition=0).get(30)
print("sent", flush=True)
sys.stdin.readline()
producer.send("orders", value=b"after", partition=0).get(60)
producer.commit_transaction()
producer.close()
"""
AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
async def main():
    producer = AIOKafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="orders")
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait("orders", value=b"before", partition=0)
    print("sent", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await producer.send_and_wait("orders", value=b"after", partition=0)
    await producer.commit_transaction()
    await producer.stop()
asyncio.run(main())
"""


@pytest.mark.parametrize("script", [KAFKA_PYTHON, AIOKAFKA], ids=["kafka-python", "aiokafka"])
def test_other_clients_transactions_go_on_after_a_kill_of_the_broker(process, script):
    client = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, process.bootstrap_servers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with client:
        assert client.stdout.readline() == "sent\n"
        process.kill()
        process.restart()
        client.communicate("\n", timeout=120)

    assert client.returncode == 0
    found = [m.value() for m in read_topic("orders", process.bootstrap_servers)]
    assert found == [b"before", b"after"]


CHILD = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "orders"})
producer.init_transactions(20)
producer.begin_transaction()
producer.produce("orders", value=b"in doubt", partition=0)
producer.flush(20)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_killed_clients_transaction_is_aborted_by_its_successor(process):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, process.bootstrap_servers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "sent\n"
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    process.kill()
    process.restart()

    successor = Producer(
        {"bootstrap.servers": process.bootstrap_servers, "transactional.id": "orders"}
    )
    successor.init_transactions(20)
    successor.begin_transaction()
    successor.produce("orders", value=b"new", partition=0)
    successor.commit_transaction(20)

    found = [m.value() for m in read_topic("orders", process.bootstrap_servers)]
    assert found == [b"new"]


def test_a_prepared_transaction_is_kept_over_a_kill_and_committed_by_its_successor(process):
    with RawClient(process.bootstrap_servers) as client:
        client.create_topic("orders")
        mine = client.init_producer("orders-0", 6, enable_2pc=True)
        pair = (mine.producer_id, mine.producer_epoch)
        data = batch(b"prepared", pair=pair, sequence=0, transactional=True)
        part = client.produce("orders", data, version=12, transactional_id="orders-0")
        assert part.error_code == 0

    process.kill()
    process.restart()

    with RawClient(process.bootstrap_servers) as client:
        assert client.fetch("orders", isolation_level=1).records == b""
        again = client.init_producer("orders-0", 6, enable_2pc=True, keep_prepared_txn=True)
        assert (again.ongoing_txn_producer_id, again.ongoing_txn_producer_epoch) == pair
        # The instance before, still alive somewhere, must not add to what is decided now.
        late = batch(b"zombie", pair=pair, sequence=1, transactional=True)
        part = client.produce("orders", late, version=12, transactional_id="orders-0")
        assert part.error_code == 47
        ended = client.end_txn("orders-0", (again.producer_id, again.producer_epoch))
        assert ended.error_code == 0

        assert values_of(client.fetch("orders", isolation_level=1)) == [b"prepared"]


def test_what_the_cluster_is_stays_and_its_epochs_grow(tmp_path):
    def look():
        with Broker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
            pid = client.init_producer().producer_id
            return broker.node.cluster.id, broker.node.cluster.coordinator_epoch, pid

    first, second = look(), look()

    assert first[0] == second[0]
    assert second[1] == first[1] + 1
    assert second[2] > first[2]


def test_a_data_directory_has_one_broker(tmp_path):
    with Broker(tmp_path), pytest.raises(DataDirInUse):
        Broker(tmp_path).start()

    with Broker(tmp_path):
        second = BrokerProcess(tmp_path)
        with pytest.raises(RuntimeError, match="is held by another process"):
            second.start()


def test_sigterm_ends_the_process_cleanly(process):
    assert process.terminate() == 0


def test_a_failing_disk_ends_the_process_with_70_and_no_answer(tmp_path):
    armed = tmp_path / "armed"
    command = [sys.executable, "-m", "tests.faults.failing_os", "--at", "1", "--how", "eio"]
    command += ["--counter", str(tmp_path / "calls"), "--after", str(armed), "--", "broker"]
    process = BrokerProcess(tmp_path / "data", command=command)
    with process, RawClient(process.bootstrap_servers) as client:
        client.create_topic("orders")
        armed.touch()

        with pytest.raises(ConnectionError):
            client.produce("orders", batch(b"x"))

        assert process.wait() == 70
