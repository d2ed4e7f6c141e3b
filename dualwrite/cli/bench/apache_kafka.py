"""A single Apache Kafka node in KRaft mode, to measure beside ours and to test clients against.

Its jars come from an unpacked distribution (KAFKA_HOME), or from Maven Central by `mvn`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

VERSION = "4.1.0"
START_SECONDS_MAX = 90
DOWNLOAD_SECONDS_MAX = 300
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
# Spark's POM sends Maven to a mirror of Central that not every network lets through; a repository
# of the same name in our own POM takes its place.
REPOSITORIES = (
    "<repositories><repository><id>gcs-maven-central-mirror</id>"
    "<url>https://repo.maven.apache.org/maven2</url></repository></repositories>"
)


class KafkaUnavailable(Exception):
    """Apache Kafka can't be had on this machine; the message says what is missing."""


def maven_jars(directory: Path, *artifacts: str) -> Path:
    """Copy the jars of `group:artifact:version` and all that they need into a folder."""
    missing = [program for program in ("mvn", "java") if shutil.which(program) is None]
    if missing:
        raise KafkaUnavailable(f"not installed: {', '.join(missing)}")
    names = "<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    template = f"<dependency>{names}</dependency>"
    dependencies = "".join(template.format(*artifact.split(":")) for artifact in artifacts)
    (directory / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>jars</groupId><artifactId>jars</artifactId><version>1</version>"
        f"{REPOSITORIES}<dependencies>{dependencies}</dependencies></project>"
    )
    jars = directory / "jars"
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    try:
        subprocess.run(
            command, cwd=directory, capture_output=True, check=True, timeout=DOWNLOAD_SECONDS_MAX
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise KafkaUnavailable(f"{', '.join(artifacts)} did not arrive: {error}") from error
    return jars


def kafka_jars(directory: Path, version: str = VERSION) -> Path:
    """The jars of a distribution: KAFKA_HOME's, or downloaded."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        return Path(home) / "libs"
    return maven_jars(
        directory, f"org.apache.kafka:kafka_2.13:{version}", "org.slf4j:slf4j-nop:1.7.36"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class ApacheKafka(contextlib.AbstractContextManager["ApacheKafka"]):
    """Broker and controller in one process, with its data in `directory`."""

    def __init__(self, directory: Path, jars: Path, **settings: str) -> None:
        self._port = _free_port()
        controller = _free_port()
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        config = directory / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        java = ["java", "-Xmx1g", "-cp", f"{jars}/*"]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)],
            check=True,
            capture_output=True,
        )
        begin = time.perf_counter()
        with (directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(config)], stdout=log, stderr=log
            )
        self._wait_until_up()
        self.seconds_to_ready = time.perf_counter() - begin

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def _wait_until_up(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                admin.list_topics(timeout=2)
                return
            except KafkaException as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self.close()
                    raise KafkaUnavailable("Apache Kafka did not start") from error

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()
