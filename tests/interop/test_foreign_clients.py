"""Apache Kafka's Java client, franz-go and kafkajs take the broker for Kafka."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dualwrite.broker import BrokerProcess
from tests.interop.toolchains import HERE, fetch, maven_jars, need, steps

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
JAVA_VALUES = sorted(
    [f"{codec}{i}" for codec in CODECS for i in range(4)]
    + [f"txn{number}-{i}" for number in (0, 2) for i in range(7)]
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "protocol"), [("4.1.0", "consumer"), ("4.1.0", "classic"), ("3.9.1", "classic")]
)
def test_java_client(tmp_path, version, protocol):
    """4.x speaks transaction version 2, 3.9 version 1; both copy exactly once in a group."""
    jars = maven_jars(
        tmp_path, f"org.apache.kafka:kafka-clients:{version}", "org.slf4j:slf4j-nop:1.7.36"
    )
    need("javac")
    source = HERE / "Conversation.java"
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", tmp_path, source], check=True)
    with BrokerProcess() as broker:
        said = steps(
            ["java", "-Xmx256m", "-cp", f"{jars}/*:{tmp_path}", "Conversation",
             broker.bootstrap_servers, protocol],
            tmp_path,
        )  # fmt: skip

    assert said["described"] == ["java-in:2"]
    assert said["out"] == JAVA_VALUES
    assert {text.split(":")[0] for text in said["transactions"]} == {"java-copier", "java-writer"}
    assert "Ongoing" not in str(said["transactions"])


@pytest.mark.slow
def test_franz_go(tmp_path: Path):
    need("go")
    shutil.copy(HERE / "conversation.go", tmp_path / "main.go")
    fetch(["go", "mod", "init", "interop"], tmp_path, "a Go module")
    fetch(["go", "get", "github.com/twmb/franz-go/pkg/kgo@v1.19.5"], tmp_path, "franz-go")
    subprocess.run(["go", "build", "-o", "conversation", "."], cwd=tmp_path, check=True)
    with BrokerProcess() as broker:
        said = steps([str(tmp_path / "conversation"), broker.bootstrap_servers], tmp_path)

    assert said["out"] == sorted(
        [f"plain{i}" for i in range(5)] + [f"txn{n}-{i}" for n in (0, 2) for i in range(5)]
    )


@pytest.mark.slow
def test_kafkajs(tmp_path: Path):
    need("node", "npm")
    shutil.copy(HERE / "conversation.js", tmp_path / "conversation.js")
    fetch(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "kafkajs@2.2.4"],
        tmp_path,
        "kafkajs",
    )
    with BrokerProcess() as broker:
        said = steps(["node", "conversation.js", broker.bootstrap_servers], tmp_path)

    assert said["out"] == sorted(f"txn{n}-{i}" for n in (0, 2) for i in range(5))
