"""The bundled broker from outside: the command, the two classes, the fixtures."""

import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from dualwrite.broker import Broker, BrokerProcess
from dualwrite.pytest_plugin import read_topic


def write(servers, topic, value):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, value=value)
    assert producer.flush(30) == 0


def test_command(tmp_path):
    """Prints one line when ready, picks a port for 0, takes a file and settings, stops on SIGTERM."""
    file = tmp_path / "broker.toml"
    file.write_text('"num.partitions" = 3\n[message]\nmax.bytes = 2000000\n')
    command = [sys.executable, "-m", "dualwrite.cli", "broker", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", tmp_path / "data", "--config", file, "--set", "node.id=5"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            line = child.stdout.readline()
            assert line.startswith("listening on 127.0.0.1:")
            servers = line.removeprefix("listening on ").strip()
            admin = AdminClient({"bootstrap.servers": servers})
            assert set(admin.list_topics(timeout=20).brokers) == {5}
            (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "5")]).values()
            found = {name: entry.value for name, entry in future.result(20).items()}
            assert found["num.partitions"] == "3"
            assert found["message.max.bytes"] == "2000000"
            assert found["transaction.two.phase.commit.enable"] == "true"
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == ""
        assert child.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--listen", "nonsense"), 2),
        (("--set", "no.such.setting=1"), 2),
        (("--set", "num.partitions=many"), 2),
        (("--config", "/nowhere.toml"), 2),
        (("--config", __file__), 2),
        (("--log-level", "silly"), 2),
        (("--no-such-option",), 2),
        (("--listen", "0.0.0.0:0"), 2),
        (("--data-dir", ""), 2),
    ],
    ids=str,
)
def test_wrong_use_of_the_command(tmp_path, arguments, code):
    """What is wrong is said in a line, with exit code 2."""
    command = [sys.executable, "-m", "dualwrite.cli", "broker", "--data-dir", tmp_path, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == code
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_embedded(tmp_path):
    """A broker in this process; settings by Kafka's names with underscores; data outlives it."""
    with Broker(data_dir=tmp_path, port=0, num_partitions=2) as broker:
        write(broker.bootstrap_servers, "orders", b"1")
        (port,) = {int(broker.bootstrap_servers.rsplit(":")[-1])}
    with Broker(data_dir=tmp_path, port=port) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"
        assert [m.value() for m in read_topic("orders", broker.bootstrap_servers)] == [b"1"]


def test_unknown_setting_is_refused():
    """A setting that nobody knows is an error."""
    with pytest.raises(ValueError, match="no_such_setting"):
        Broker(no_such_setting=1)


@pytest.mark.parametrize("kind", [Broker, BrokerProcess])
def test_misuse_of_the_classes(kind):
    """Who asks too early or starts twice is told so, and what runs goes on."""
    broker = kind()
    for early in (lambda: broker.bootstrap_servers, lambda: kind(data_dir="")):
        with pytest.raises((RuntimeError, ValueError), match=r"not started|empty"):
            early()
    broker.stop()
    with broker:
        servers = broker.bootstrap_servers
        with pytest.raises(RuntimeError, match="started already"):
            broker.start()
        write(servers, "orders", b"1")
        assert broker.bootstrap_servers == servers
    with broker:
        write(broker.bootstrap_servers, "orders", b"2")
    broker.stop()


def test_process_is_killed_and_restarted():
    """What was acknowledged survives SIGKILL, on the same port and data."""
    with BrokerProcess() as broker:
        servers = broker.bootstrap_servers
        write(servers, "orders", b"1")
        broker.kill()
        broker.restart()
        assert broker.bootstrap_servers == servers
        assert [m.value() for m in read_topic("orders", servers)] == [b"1"]


def test_process_that_does_not_start_says_why():
    """A port in use is an error, and not a broker that nobody can reach."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match="in use"):
            BrokerProcess(port=port).start()
    with BrokerProcess() as broker:
        broker.kill()
        with socket.create_server(("127.0.0.1", broker.port)):
            with pytest.raises(RuntimeError, match="in use"):
                broker.restart()
        broker.restart()


def test_fixtures(kafka_broker, kafka_broker_process, read_committed):
    """The plugin gives both brokers and a reader for the test's own one."""
    assert isinstance(kafka_broker, Broker)
    assert isinstance(kafka_broker_process, BrokerProcess)
    topic = f"t-{uuid.uuid4().hex}"
    assert read_committed(topic) == []
    write(kafka_broker.bootstrap_servers, topic, str(time.time_ns()).encode())
    assert len(read_committed(topic)) == 1


def test_two_phase_commit_is_off_when_others_can_reach_it(tmp_path):
    """The default is on only for loopback without authentication."""
    with Broker(settings={"listeners": "PLAINTEXT://0.0.0.0:0", "insecure.listeners": True,
                          "advertised.listeners": "PLAINTEXT://127.0.0.1:1"}) as broker:  # fmt: skip
        settings = broker.node.settings
        port = broker.port
    assert port > 0
    assert not settings["transaction.two.phase.commit.enable"]
