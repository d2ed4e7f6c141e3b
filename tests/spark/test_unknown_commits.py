"""A COMMIT of the user's database whose answer was lost, in the middle of a batch."""

from contextlib import contextmanager

import pytest
from sqlalchemy import text

from dualwrite import RetryableError
from dualwrite.adapters.sql import SqlStore
from dualwrite.recipes.spark.coordinator import Coordinator
from dualwrite.recipes.spark.foreach_batch import Batch
from dualwrite.recipes.spark.reports import join
from dualwrite.recipes.spark.sql_log import SqlDecisionLog
from dualwrite.store import CommitUnknown
from tests.spark import kafka
from tests.spark.test_zombies import QUERY, Sink


class Frame:
    """As much of a DataFrame as a decision needs."""

    def count(self):
        return 2


class LostAnswers(SqlDecisionLog):
    """A log whose next data transaction ends without an answer."""

    is_committed = True
    is_armed = False

    @contextmanager
    def transaction(self):
        if not self.is_armed:
            with super().transaction() as transaction:
                yield transaction
            return
        self.is_armed = False
        try:
            with super().transaction() as transaction:
                yield transaction
                if not self.is_committed:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        raise CommitUnknown("the answer was lost")


@pytest.fixture
def sink(servers, name, tmp_path):
    sink = Sink(servers, name)
    sink.log.close()
    sink.store = SqlStore(f"sqlite:///{tmp_path}/data.db", create=True)
    sink.log = LostAnswers(sink.store, name, owns_store=True)
    sink.coordinator = Coordinator(name, "driver", sink.transactions, sink.log)
    with sink.store.engine.begin() as connection:
        connection.execute(text("CREATE TABLE rows_written (n INTEGER)"))
    yield sink
    sink.close()


def also(tx, frame, number):
    tx.connection.execute(text("INSERT INTO rows_written VALUES (1), (2)"))


def try_batch(sink):
    attempt = sink.coordinator.open()
    batch = Batch(sink.coordinator, sink.log, attempt, QUERY, 0)
    joined = join([sink.write(attempt, p, p) for p in range(2)], 0)
    sink.log.is_armed = True
    with batch.given_up_on_error():
        batch.decide_with(joined, Frame(), also)


def rows_of(sink):
    with sink.store.engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM rows_written")).scalar_one()


def test_a_commit_that_was_done_is_carried_out(sink, servers, name):
    try_batch(sink)

    assert rows_of(sink) == 2
    assert kafka.values(servers, sink.topic) == [0, 1]
    assert sink.log.read().pending == []
    assert kafka.open_ids(servers, name) == []


def test_a_commit_that_was_not_done_is_aborted_and_can_be_tried_again(sink, servers, name):
    sink.log.is_committed = False
    with pytest.raises(RetryableError, match="rolled back"):
        try_batch(sink)
    assert rows_of(sink) == 0
    assert kafka.values(servers, sink.topic) == []
    assert kafka.open_ids(servers, name) == []

    sink.log.is_committed = True
    try_batch(sink)

    assert rows_of(sink) == 2
    assert kafka.values(servers, sink.topic) == [0, 1]
