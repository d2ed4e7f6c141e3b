"""The decision is a table: every combination of what the store remembers and what Kafka shows."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.outcome import Fate, Finding, decide, examine, fate
from dualwrite.prepared import PreparedTxnState

NONE = PreparedTxnState.NONE
P = PreparedTxnState(7, 41)
Q = PreparedTxnState(7, 42)


@dataclass(frozen=True)
class Finished:
    pair: PreparedTxnState
    outcome: str


@pytest.mark.parametrize(
    ("remembered", "ongoing", "expected"),
    [
        (P, P, "commit"),
        (P, Q, "abort"),
        (NONE, Q, "abort"),
        (P, NONE, "nothing"),
        (NONE, NONE, "nothing"),
        (PreparedTxnState(8, 41), P, "abort"),
    ],
)
def test_only_the_remembered_pair_is_committed(remembered, ongoing, expected):
    assert decide(remembered, ongoing) == expected


pairs = st.builds(PreparedTxnState, st.integers(0, 3), st.integers(0, 3)) | st.just(NONE)


@given(pairs, pairs)
def test_commit_happens_exactly_for_equal_open_pairs(remembered, ongoing):
    assert (decide(remembered, ongoing) == "commit") == (
        ongoing.has_transaction and ongoing == remembered
    )


@pytest.mark.parametrize(
    ("remembered", "ongoing", "finished", "expected"),
    [
        # The remembered transaction is open: what was finished before it does not matter.
        (Q, Q, Finished(P, "commit"), Finding.AGREES),
        (Q, Q, Finished(P, "abort"), Finding.AGREES),
        # It is finished, as the database says.
        (P, NONE, Finished(P, "commit"), Finding.AGREES),
        (P, Q, Finished(P, "commit"), Finding.AGREES),
        # A later transaction was aborted before its decision.
        (P, NONE, Finished(Q, "abort"), Finding.AGREES),
        # Ended against the database.
        (P, NONE, Finished(P, "abort"), Finding.HEURISTIC_ABORT),
        (P, Q, Finished(P, "abort"), Finding.HEURISTIC_ABORT),
        # Kafka has committed what the database does not know.
        (P, NONE, Finished(Q, "commit"), Finding.DATABASE_BEHIND),
        (P, PreparedTxnState(7, 43), Finished(Q, "commit"), Finding.DATABASE_BEHIND),
        # A database that never used the id.
        (NONE, NONE, Finished(Q, "commit"), Finding.NEW_DATABASE),
        (NONE, P, Finished(Q, "commit"), Finding.NEW_DATABASE),
        (NONE, NONE, Finished(Q, "abort"), Finding.AGREES),
        (NONE, NONE, None, Finding.AGREES),
        (NONE, P, None, Finding.AGREES),
        # A Kafka that never saw what the database remembers.
        (P, NONE, None, Finding.FORGOTTEN),
        (P, Q, None, Finding.FORGOTTEN),
    ],
)
def test_what_is_finished_is_compared_with_what_is_remembered(
    remembered, ongoing, finished, expected
):
    assert examine(remembered, ongoing, finished) is expected


@pytest.mark.parametrize(
    ("state", "pair", "expected"),
    [
        ("Ongoing", P, Fate.OPEN),
        ("Ongoing", Q, Fate.COMMITTED),
        ("Ongoing", PreparedTxnState(7, 40), Fate.DOUBT),
        ("Ongoing", PreparedTxnState(9, 0), Fate.DOUBT),
        ("CompleteCommit", P, Fate.COMMITTED),
        ("CompleteCommit", Q, Fate.COMMITTED),
        ("CompleteCommit", PreparedTxnState(9, 0), Fate.COMMITTED),
        ("PrepareCommit", Q, Fate.COMMITTED),
        ("CompleteAbort", P, Fate.ABORTED),
        ("CompleteAbort", Q, Fate.ABORTED),
        ("PrepareAbort", Q, Fate.ABORTED),
        ("CompleteAbort", PreparedTxnState(7, 43), Fate.COMMITTED),
        ("CompleteAbort", PreparedTxnState(9, 0), Fate.DOUBT),
        ("CompleteAbort", PreparedTxnState(7, 40), Fate.DOUBT),
        ("Empty", Q, Fate.DOUBT),
    ],
)
def test_fate_without_kip_939_is_told_only_where_it_is_proven(state, pair, expected):
    assert fate(P, state, pair) is expected
