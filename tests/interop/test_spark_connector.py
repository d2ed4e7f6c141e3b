"""Spark's own Kafka connector (Java client 3.9) on the bundled broker."""

import contextlib
import sys

import pyspark
import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.cli.bench.apache_kafka import KafkaUnavailable, maven_jars
from tests.interop.toolchains import HERE, need, steps

# A registry may not have the newest one yet; Spark keeps the connector's interfaces within 4.x.
VERSIONS = (pyspark.__version__, "4.2.0")


def connector_jars(directory):
    for version in VERSIONS:
        with contextlib.suppress(KafkaUnavailable):
            return maven_jars(directory, f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}")
    pytest.skip(f"the connector can't be had in {' or '.join(VERSIONS)}")


@pytest.mark.slow
def test_spark_reads_writes_and_streams(tmp_path):
    need("java")
    jars = connector_jars(tmp_path)
    # What Spark has already must not come twice.
    wanted = [
        jar
        for jar in jars.iterdir()
        if jar.name.startswith(
            ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
        )
    ]
    with BrokerProcess() as broker:
        said = steps(
            [sys.executable, str(HERE / "spark_connector.py"), broker.bootstrap_servers,
             ",".join(map(str, wanted))],
            tmp_path,
        )  # fmt: skip

    assert said["out"] == [str(number) for number in range(100)]
