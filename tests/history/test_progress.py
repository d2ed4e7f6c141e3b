"""What counts as done since a phase began."""

import pytest

from tests.history.history import Poll, Recorder, Send, Txn
from tests.history.progress import START, Progress

TROUBLE = "trouble"
WRITER = "ours.0"
READER = "subscriber.0"


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(tmp_path / "history")
    yield made
    made.close()


@pytest.fixture
def progress(tmp_path, recorder):
    return Progress(tmp_path / "history", [WRITER], [READER])


def write(recorder, number, status="ok", before_the_end=lambda: None):
    txn = Txn(f"{WRITER}.1", number, status)
    txn.sends = [Send("lists/0", f"{txn.name}:0=7", number)]
    recorder.invoke(txn)
    before_the_end()
    recorder.complete(txn)
    return txn


def read(recorder, txn):
    polls = [Poll("lists/0", [(txn.number, txn.sends[0].value)])]
    recorder.complete(Txn(f"{READER}.2", txn.number, "ok", polls=polls))


def test_a_phase_that_has_not_begun_misses_everybody(recorder, progress):
    read(recorder, write(recorder, 1))

    assert progress.missing(START) == []
    assert len(progress.missing(TROUBLE)) == 2


def test_what_was_done_before_does_not_count(recorder, progress):
    before = write(recorder, 1)
    recorder.phase(TROUBLE)
    read(recorder, before)

    assert len(progress.missing(TROUBLE)) == 2


def test_what_was_begun_before_does_not_count(recorder, progress):
    read(recorder, write(recorder, 1, before_the_end=lambda: recorder.phase(TROUBLE)))

    assert len(progress.missing(TROUBLE)) == 2


@pytest.mark.parametrize("status", ["fail", "info"])
def test_only_what_is_known_to_be_committed_counts(recorder, progress, status):
    recorder.phase(TROUBLE)
    write(recorder, 1, status)

    assert progress.idle_writers(TROUBLE) == [f"{WRITER} has committed nothing"]


def test_what_comes_between_two_looks_is_counted_once(tmp_path, recorder, progress):
    recorder.phase(TROUBLE)
    read(recorder, write(recorder, 1))
    assert progress.missing(TROUBLE) == []
    with open(tmp_path / "history", "a") as file:
        file.write('\n{"type": "ok", "pro')  # killed inside the write
    assert progress.missing(TROUBLE) == []
    read(recorder, write(recorder, 2))

    assert progress.missing(TROUBLE) == []
    assert progress.since[TROUBLE].committed == {WRITER: 2}
    assert progress.since[TROUBLE].read == {READER: 2}
