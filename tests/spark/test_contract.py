"""What the sink builds on in PySpark and nobody documents; a new version must still do it."""

import json
import os
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from dualwrite.recipes.spark import task
from tests.spark import kafka
from tests.spark.faults import FOLDER

pytestmark = pytest.mark.filterwarnings("ignore")


def note(**facts):
    """Write down what a worker saw, one file per event."""
    folder = Path(os.environ[FOLDER]) / "pid.contract"
    folder.mkdir(exist_ok=True)
    (folder / os.urandom(8).hex()).write_text(json.dumps(facts))


class Recorder(DataSource):
    def __init__(self, options):
        self.options = options
        self.is_unpickled = False

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.is_unpickled = True

    @classmethod
    def name(cls):
        return "recorder"

    def streamWriter(self, schema, overwrite):
        note(event="streamWriter", is_unpickled=self.is_unpickled, pid=os.getpid())
        return RecordingWriter(None if self.is_unpickled else os.urandom(4).hex())


class Said(WriterCommitMessage):
    def __init__(self, nonce):
        self.nonce = nonce


class RecordingWriter(DataSourceStreamArrowWriter):
    def __init__(self, nonce):
        self.nonce = nonce

    def write(self, iterator):
        rows = sum(batch.num_rows for batch in iterator)
        context = TaskContext.get()
        note(
            event="write",
            nonce=self.nonce,
            rows=rows,
            partition=context.partitionId(),
            query=context.getLocalProperty(task.QUERY_ID),
            batch=context.getLocalProperty(task.BATCH_ID),
            run=context.getLocalProperty(task.RUN_ID),
            continuous=context.getLocalProperty(task.IS_CONTINUOUS),
        )
        return Said(self.nonce)

    def commit(self, messages, batchId):
        note(event="commit", batch=batchId, nonces=[m.nonce for m in messages], mine=self.nonce)

    def abort(self, messages, batchId):
        note(event="abort")


def test_spark_calls_the_sink_as_it_expects(spark, servers, name, tmp_path, faults_folder):
    from dualwrite.recipes.spark import register

    register(spark)
    spark.dataSource.register(Recorder)
    kafka.create_topic(servers, name, 3)
    kafka.fill(servers, name, range(9), partitions=3)
    query = (
        spark.readStream.format("dualwrite")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("recorder")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    notes = [json.loads(p.read_text()) for p in (faults_folder / "pid.contract").iterdir()]
    by_event = {}
    for one in notes:
        by_event.setdefault(one["event"], []).append(one)

    # Constructed where the write is planned, unpickled where it is committed.
    assert sorted(one["is_unpickled"] for one in by_event["streamWriter"]) == [False, True]
    # The planned writer reaches the tasks, and only their messages reach the commit.
    (nonce,) = {one["nonce"] for one in by_event["write"]}
    (commit,) = by_event["commit"]
    assert (set(commit["nonces"]), commit["mine"]) == ({nonce}, None)
    # Tasks know their query, its run and their batch.
    assert {one["run"] for one in by_event["write"]} == {str(query.runId)}
    assert {one["query"] for one in by_event["write"]} == {str(query.id)}
    assert {one["batch"] for one in by_event["write"]} == {str(commit["batch"])}
    assert {one["continuous"] for one in by_event["write"]} == {"false"}
    assert sum(one["rows"] for one in by_event["write"]) == 9
    assert "abort" not in by_event
