"""The checker is itself tested: every planted anomaly is found, clean histories raise nothing."""

import json

import pytest

from tests.history.checker import check
from tests.history.history import History, Poll, Recorder, Send, Txn, load
from tests.history.planted import PLANTED, clean

CLEAN_HISTORIES = 1_000
# The longest of these hold an instance of everything that the planted bugs need.
SEEDS = range(5)
STEPS = 400


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=[f.__name__ for _, f in PLANTED])
def test_planted_anomaly_is_found(kind, plant):
    for seed in SEEDS:
        print(f"seed {seed}")
        history = clean(seed, STEPS)
        plant(history)

        kinds = {anomaly.kind for anomaly in check(history)}

        assert kind in kinds


def test_clean_histories_raise_nothing():
    for seed in range(CLEAN_HISTORIES):
        print(f"seed {seed}")
        assert check(clean(seed)) == []


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


def test_killed_client_leaves_an_unknown_transaction_if_it_had_asked(tmp_path):
    recorder = Recorder(tmp_path / "history")
    first, second, third = (Txn("w0", n, sends=[Send("a/0", str(n))]) for n in range(3))
    recorder.invoke(first)
    recorder.ask(first)
    first.status = "ok"
    recorder.complete(first)
    recorder.invoke(second)
    recorder.ask(second)
    recorder.invoke(third)
    recorder.close()
    lines = (tmp_path / "history").read_text().splitlines()

    history = load([*lines, '{"type": "ok", "proc'])

    statuses = {txn.name: txn.status for txn in history.txns}
    assert statuses == {"w0/0": "ok", "w0/1": "info", "w0/2": "fail"}


def test_half_a_line_of_a_killed_process_spoils_no_other(tmp_path):
    path = tmp_path / "history"
    path.write_text('\n{"type": "rows", "tx')
    recorder = Recorder(path)
    recorder.write("rows", txns=["w0/0"])
    recorder.close()

    assert load(path.read_text().splitlines()).rows == {"w0/0"}


def test_polls_are_placed_before_what_was_asked_later(tmp_path):
    recorder = Recorder(tmp_path / "history")
    writer = Txn("w0", 0, sends=[Send("a/0", "x", 0)])
    reader = Txn("r0", 0, "ok", polls=[Poll("a/0", [(0, "x")])])
    recorder.invoke(writer)
    recorder.complete(reader)
    recorder.ask(writer)
    writer.status = "ok"
    recorder.complete(writer)
    recorder.close()

    found = check(load((tmp_path / "history").read_text().splitlines()))

    assert [anomaly.kind for anomaly in found] == ["read-before-commit"]


def test_rows_offsets_watermarks_and_final_reads_are_loaded():
    lines = [
        {"type": "rows", "txns": ["w0/0"]},
        {"type": "watermark", "reader": "r", "key": "a/0", "lso": 3, "hw": 4},
        {"type": "assign", "process": "r", "from_start": False},
        {"type": "committed", "group": "g", "key": "a/0", "offset": 7},
        {"type": "final", "key": "a/0", "seen": [[0, "x"]]},
    ]

    history = load(map(json.dumps, lines))

    assert history.rows == {"w0/0"}
    assert history.committed == {("g", "a/0"): 7}
    assert len(history.events) == 2
    assert history.final == [Poll("a/0", [(0, "x")])]


def test_a_database_that_has_lost_every_row_is_not_taken_for_one_that_was_not_asked():
    history = load([json.dumps({"type": "rows", "txns": []})])

    assert history.rows == set()
