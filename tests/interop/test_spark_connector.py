"""Spark's own Kafka connector (Java client 3.9) on the bundled broker."""

import contextlib
import sys

import pyspark
import pytest

from dualwrite.broker import BrokerProcess
from dualwrite.cli.bench.apache_kafka import KafkaUnavailable, maven_jars
from tests.interop.toolchains import HERE, need, steps

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
# The connector of this Spark with all that it needs. A registry may lack its newest parts: 4.2.0 has
# the interfaces of 4.3, and the part for delegation tokens, which nothing here uses, those of 4.0.0.
CHOICES = (
    (f"{CONNECTOR}:{pyspark.__version__}",),
    (f"{CONNECTOR}:4.2.0", f"{TOKENS}:4.0.0"),
)


def connector_jars(directory):
    for choice in CHOICES:
        with contextlib.suppress(KafkaUnavailable):
            return maven_jars(directory, *choice)
    pytest.skip(f"Maven has none of these: {'; '.join(' with '.join(one) for one in CHOICES)}")


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
