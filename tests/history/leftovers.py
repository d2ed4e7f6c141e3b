"""What is still open after everything was healed: nothing may be."""

from collections.abc import Iterator, Sequence

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient

from dualwrite import TransactionAdmin
from tests.history.checker import Anomaly
from tests.history.watermarks import ends

ENDED = ("CompleteCommit", "CompleteAbort", "Empty")


def unfinished(bootstrap: str, keys: Sequence[str]) -> Iterator[Anomaly]:
    """Partitions whose readers wait for a transaction, and transactions that have not come to an end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    stable = ends(admin, keys, IsolationLevel.READ_COMMITTED)
    high = ends(admin, keys, IsolationLevel.READ_UNCOMMITTED)
    for key in keys:
        if not 0 <= stable[key] == high[key]:  # librdkafka says -1 where it was told nothing
            yield Anomaly("open", f"{key}: LSO {stable[key]}, HW {high[key]}")
    with TransactionAdmin({"bootstrap.servers": bootstrap}) as transactions:
        for shown in transactions.list_transactions():
            if shown.state not in ENDED:
                yield Anomaly("open", f"{shown}")
