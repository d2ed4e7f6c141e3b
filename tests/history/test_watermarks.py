"""What is recorded of LSO and HW: nothing that librdkafka has made up."""

import socket

import pytest

from tests.history.checker import check
from tests.history.history import Recorder, load
from tests.history.watermarks import Watcher

KEYS = ["lists/0", "lists/1"]
UNKNOWN = -1


@pytest.fixture
def history(tmp_path):
    """A watcher that was told 7 once, and what was recorded since."""
    path = tmp_path / "history"
    watcher = Watcher(Recorder(path), "nobody:1", KEYS)
    watcher.record(dict.fromkeys(KEYS, 7), dict.fromkeys(KEYS, 8))
    return watcher, lambda: load(path.read_text().splitlines())


@pytest.mark.parametrize("stable", [UNKNOWN, 7])
@pytest.mark.parametrize("high", [UNKNOWN, 8])
def test_offsets_that_librdkafka_does_not_know_raise_no_alarm(history, stable, high):
    """Where the broker goes away between two partitions' answers, the result has -1 for one of them."""
    watcher, recorded = history

    watcher.record({KEYS[0]: stable, KEYS[1]: 7}, {KEYS[0]: 8, KEYS[1]: high})

    assert check(recorded()) == []
    assert watcher.answers == (2 if UNKNOWN not in (stable, high) else 1)
    assert watcher.high == dict.fromkeys(KEYS, 8)


@pytest.mark.parametrize(
    ("stable", "high", "kind"),
    [(6, 8, "lso-regress"), (7, 7, "hw-regress"), (10, 9, "lso-above-hw")],
)
def test_what_went_back_is_judged(history, stable, high, kind):
    watcher, recorded = history

    watcher.record({KEYS[0]: stable, KEYS[1]: 7}, {KEYS[0]: high, KEYS[1]: 8})

    assert {anomaly.kind for anomaly in check(recorded())} == {kind}


def test_a_broker_that_is_down_is_not_recorded(history):
    watcher, recorded = history
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        host, port = nobody.getsockname()
        gone = Watcher(watcher._recorder, f"{host}:{port}", KEYS)

        gone.look()

    assert gone.answers == 0
    assert len(recorded().events) == len(KEYS)
