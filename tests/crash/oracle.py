"""What must be true after every crash, whatever it was."""

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from dualwrite import TransactionAdmin
from tests.dualwrite.world import read_committed


def create(case, commit_seconds=0):
    place = case.place
    place.create(commit_seconds)
    place.close()


def judge(case, expected_first, others=()):
    """The oracle; `expected_first` tells whether order 1 must be there, or may not.

    `others` are orders that were written beside it, and must be there in any case.
    """
    place = case.place
    try:
        with case.writer(place) as dw:
            assert open_transactions(case) == []
            with dw.transaction() as tx:
                place.order(tx, 2)
                tx.produce(case.topic, key="2", value=b"x")
            orders = place.orders()
        certain = sorted([2, *others])
        assert orders == ([1, *certain] if expected_first else certain)
        keys = sorted(int(key) for key, _ in read_committed(case.bootstrap, case.topic))
        assert keys == ([1, 1] if expected_first else []) + certain
        assert_nothing_hangs(case)
        with case.writer(place):
            assert place.orders() == orders
            assert_nothing_hangs(case)
    finally:
        place.close()


def open_transactions(case):
    with TransactionAdmin({"bootstrap.servers": case.bootstrap}) as admin:
        # In resume mode every claim has an id of its own.
        pattern = rf"^{case.app}-[0-9]+(\.[0-9]+)?$"
        return admin.list_transactions(["Ongoing"], id_pattern=pattern)


def assert_nothing_hangs(case):
    """The last stable offset is the end of the log."""
    admin = AdminClient({"bootstrap.servers": case.bootstrap, "log_level": 0})
    admin.list_topics(
        timeout=20
    )  # librdkafka's first question, if it is about leaders, takes seconds
    ends = {}
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = {TopicPartition(case.topic, 0): OffsetSpec.latest()}
        found = admin.list_offsets(asked, isolation_level=level, request_timeout=20)
        ends[level] = [future.result().offset for future in found.values()]
    assert ends[IsolationLevel.READ_COMMITTED] == ends[IsolationLevel.READ_UNCOMMITTED]
