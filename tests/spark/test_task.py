"""What a task knows of itself, and what it does with a batch that is decided already."""

import pyarrow as pa
import pytest

from dualwrite.errors import ConfigurationError
from dualwrite.recipes.spark import task
from dualwrite.recipes.spark.coordinator import Attempt
from dualwrite.recipes.spark.options import SinkOptions


class Context:
    """Spark's context of a task, with chosen local properties."""

    def __init__(self, **properties):
        self._properties = properties

    def getLocalProperty(self, name):
        return self._properties.get(name)

    def partitionId(self):
        return 3

    def attemptNumber(self):
        return 1


@pytest.fixture
def in_task(monkeypatch):
    def pretend(**properties):
        context = Context(**properties)
        monkeypatch.setattr(task.TaskContext, "get", classmethod(lambda cls: context))

    return pretend


def test_a_task_knows_its_place(in_task):
    in_task(**{task.QUERY_ID: "q", task.BATCH_ID: "7", task.IS_CONTINUOUS: "false"})

    assert task.place_in_stream() == task.Place("query:q", 7, 3, 1)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({task.BATCH_ID: "7"}, "does not tell tasks"),
        ({task.QUERY_ID: "q"}, "does not tell tasks"),
        (
            {task.QUERY_ID: "q", task.BATCH_ID: "7", task.IS_CONTINUOUS: "true"},
            "continuous processing",
        ),
    ],
)
def test_a_task_never_guesses_its_place(in_task, properties, said):
    in_task(**properties)

    with pytest.raises(ConfigurationError, match=said):
        task.place_in_stream()


def test_a_job_inside_foreach_batch_needs_an_id(in_task):
    """Without one nobody could know that a batch which is run again is written already."""
    in_task(**{task.QUERY_ID: "q", task.BATCH_ID: "7"})

    with pytest.raises(
        ConfigurationError, match=r"give each batch a dualwrite\.job\.id of its own"
    ):
        task.place_in_job(task.UNNAMED_JOBS, 3)
    assert task.place_in_job("job:j", 0) == task.Place("job:j", 0, 3, 1)
    in_task()
    assert task.place_in_job(task.UNNAMED_JOBS, 3) == task.Place("jobs", 3, 3, 1)


def test_outside_of_spark_nothing_is_written():
    with pytest.raises(ConfigurationError, match="inside a Spark task"):
        task.place_in_stream()


class NoTransactions:
    def begin(self, partition, attempt_number):
        raise AssertionError("a transaction was begun")


def test_a_decided_batch_is_read_to_its_end_and_dropped():
    batches = iter([pa.RecordBatch.from_pylist([{"value": b"v"}])] * 3)
    attempt = Attempt("n", 1, {"query:q": 7})
    options = SinkOptions(sink="s", kafka={"bootstrap.servers": "localhost"}, topic="t")

    report = task.write(batches, task.Place("query:q", 7, 0, 0), attempt, options, NoTransactions())

    assert report.is_skipped
    assert list(batches) == []


def test_a_task_without_rows_begins_no_transaction():
    empty = pa.RecordBatch.from_pylist([{"value": b"v"}]).slice(1)
    options = SinkOptions(sink="s", kafka={"bootstrap.servers": "localhost"}, topic="t")

    report = task.write(
        iter([empty]),
        task.Place("query:q", 8, 0, 0),
        Attempt("n", 1, {}),
        options,
        NoTransactions(),
    )

    assert (report.rows, report.participant, report.is_skipped) == (0, None, False)
