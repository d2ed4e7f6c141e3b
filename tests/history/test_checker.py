"""The checker is itself tested: every planted anomaly is found, clean histories raise nothing."""

import json

import pytest

from tests.history.checker import check
from tests.history.history import History, Poll, Recorder, Send, Txn, load
from tests.history.planted import PLANTED, changed_bytes, clean

CLEAN_HISTORIES = 1_000
# The longest of these hold an instance of everything that the planted bugs need.
SEEDS = range(5)
STEPS = 400


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_anomaly_is_found(kind):
    for seed in SEEDS:
        history = clean(seed, STEPS)
        PLANTED[kind](history)

        kinds = {anomaly.kind for anomaly in check(history)}

        assert kind in kinds, f"seed {seed}"


def test_different_bytes_at_one_offset_are_found():
    history = clean(1, STEPS)
    changed_bytes(history)

    assert "inconsistent-offsets" in {a.kind for a in check(history)}


def test_clean_histories_raise_nothing():
    for seed in range(CLEAN_HISTORIES):
        assert check(clean(seed)) == [], f"seed {seed}"


def test_interleaved_writes_of_concurrent_transactions_are_allowed():
    """G0 is legal in Kafka: transactions isolate their visibility, not their places in the log."""
    history = History(
        events=[
            Txn("w0", 0, "ok", sends=[Send("a/0", "1", 0), Send("a/0", "3", 2)]),
            Txn("w1", 0, "ok", sends=[Send("a/0", "2", 1), Send("a/0", "4", 3)]),
        ],
        final=[Poll("a/0", [(0, "1"), (1, "2"), (2, "3"), (3, "4")])],
    )

    assert check(history) == []


def test_killed_client_leaves_an_unknown_transaction(tmp_path):
    recorder = Recorder(tmp_path / "history")
    recorder.invoke(Txn("w0", 0, sends=[Send("a/0", "x")]))
    recorder.complete(Txn("w0", 0, "ok", sends=[Send("a/0", "x", 7)]))
    recorder.invoke(Txn("w0", 1, sends=[Send("a/0", "y")]))
    recorder.close()
    lines = (tmp_path / "history").read_text().splitlines()

    history = load([*lines, '{"type": "ok", "proc'])

    assert [(t.status, t.sends) for t in history.txns] == [
        ("ok", [Send("a/0", "x", 7)]),
        ("info", [Send("a/0", "y")]),
    ]


def test_rows_watermarks_and_final_reads_are_loaded():
    lines = [
        {"type": "row", "txn": "w0/0"},
        {"type": "watermark", "reader": "r", "key": "a/0", "lso": 3, "hw": 4},
        {"type": "assign", "process": "r"},
        {"type": "final", "key": "a/0", "seen": [[0, "x"]]},
    ]

    history = load(map(json.dumps, lines))

    assert history.rows == {"w0/0"}
    assert len(history.events) == 2
    assert history.final == [Poll("a/0", [(0, "x")])]
