"""`dualwrite bench` as a user runs it: every section but Spark's, in a very short run, and its picture.

How fast anything is plays no part here. tests/spark/test_bench.py runs Spark's section.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dualwrite.cli.bench import SECTIONS
from dualwrite.cli.bench.apache_kafka import KafkaUnavailable, kafka_jars

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
# The command as it is, except that little grows: 1 GB and 10,000 partitions take minutes.
SMALL_GROWTH = """
from dataclasses import replace
from dualwrite.cli import main
from dualwrite.cli.bench import scaling
scaling.DIMENSIONS = [replace(each, sizes=(1, 3)) for each in scaling.DIMENSIONS]
main()
"""
TRANSACTIONS = "transactions (Produce + EndTxn, durable)"
GROWTH = "growth: one transaction, p50"
TITLES = {
    "floor": ["floor"],
    "brokers": ["broker"],
    "transactions": [TRANSACTIONS],
    "noise": ["beside slow senders and garbage"],
    "unread": ["beside consumers that do not read"],
    "dual_writes": ["dual write, SQLite", "dual write, PostgreSQL"],
    "scaling": [GROWTH],
}
# Peers without a row: their figure, or what it is a share of, is with the ratio itself.
ELSEWHERE = ("fdatasync p50", "a broker without", "2,560 MiB that they asked for")
BESIDE_KAFKA = {"broker": 5, TRANSACTIONS: 1}
README_ROWS = {
    (TRANSACTIONS, "16 producers of ours", ""),
    (TRANSACTIONS, "1 producer of ours, p50", "fdatasync p50"),
    (TRANSACTIONS, "1 producer of ours", "1 confluent-kafka"),
    ("broker", "broker while it is produced to", ""),
    ("broker", "broker while it is fetched from", ""),
    ("broker", "start to ready, empty", ""),
    ("broker", "memory when idle", ""),
}
README_ROWS_BESIDE_KAFKA = {
    (TRANSACTIONS, "16 producers of ours", "16 producers of ours on Apache Kafka"),
    ("broker", "produce 1 KiB", "produce 1 KiB, Apache Kafka"),
    ("broker", "fetch 1 KiB", "fetch 1 KiB, Apache Kafka"),
    ("broker", "start to ready, empty", "start to ready, empty, Apache Kafka"),
    ("broker", "memory when idle", "memory when idle, Apache Kafka"),
}
WAYS = ("unsafe double write", "outbox and poller", "dual write, wait", "dual write, background")
KINDS = ("1 writer p50", "16 writers", "16 writers, visible")


def dual_write_figures():
    """(work, what it is against) of a database's section; None for no ratio."""
    for kind in KINDS[:2]:
        yield f"database only, {kind}", None
    for way in WAYS:
        for kind in KINDS:
            yield f"{way}, {kind}", None if "visible" in kind else f"database only, {kind}"
        for writers in ("1 writer", "16 writers"):
            yield f"{way}, {writers}, commit to visible p50", None
        if way.startswith("dual write"):
            yield from ((f"{way}, {k}", f"{peer}, {k}") for peer in WAYS[:2] for k in KINDS)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Apache Kafka from an unpacked distribution or from jars that are here; nothing is downloaded."""
    folder = tmp_path_factory.mktemp("maven")
    maven = shutil.which("mvn")
    shim = folder / "mvn"
    shim.write_text(f'#!/bin/sh\nexec {maven or "false"} --offline "$@"\n')
    shim.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def has_kafka(environment, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", environment["PATH"])
        try:
            jars = kafka_jars(tmp_path_factory.mktemp("jars"))
        except KafkaUnavailable as missing:
            print(f"Apache Kafka left out: {missing}")
            return False
    # The sections need not look for them again.
    home = tmp_path_factory.mktemp("kafka")
    (home / "libs").symlink_to(jars)
    environment["KAFKA_HOME"] = str(home)
    return True


@pytest.fixture(scope="module")
def measured(environment, has_kafka, tmp_path_factory):
    """Rows by section, notes and the picture of one run."""
    plot = tmp_path_factory.mktemp("plot") / "bench.svg"
    command = [sys.executable, "-c", SMALL_GROWTH, "bench", *TITLES, "--seconds", "0.2", "--json"]
    done = subprocess.run(
        [*command, "--plot", plot], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    return found["rows"], found["notes"], ElementTree.parse(plot).getroot()


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def of_section(rows, title):
    return [row for row in rows if row["section"] == title]


def test_every_section_but_spark_is_run_here():
    assert {*TITLES, "spark"} == set(SECTIONS)


def test_every_section_has_rows_and_they_are_figures(measured):
    rows, notes, _ = measured

    assert list(dict.fromkeys(row["section"] for row in rows)) == [
        *chain.from_iterable(TITLES.values())
    ]
    assert "0.2 s for each measurement" in notes[0]
    for row in rows:
        assert row["value"] is None or row["value"] >= 0, row
        if row["value"] is None or (row["ratio"] is None and row["against"]):
            assert row["note"], row


def test_dual_writes_are_measured_beside_what_one_would_do_instead(measured):
    for title in TITLES["dual_writes"]:
        found = [(row["work"], row["against"] or None) for row in of_section(measured[0], title)]
        assert Counter(found) == Counter(dual_write_figures())


def test_every_figure_of_the_readme_has_a_row(measured, has_kafka):
    """Of its table on speed; dual writes, growth and Spark have tests of their own."""
    found = {(row["section"], row["work"], row["against"]) for row in measured[0]}

    assert found >= README_ROWS | (README_ROWS_BESIDE_KAFKA if has_kafka else set())


def test_all_that_grows_is_measured_at_every_size(measured):
    found = [row["work"] for row in of_section(measured[0], GROWTH)]

    names = ["idle partitions", "prepared transactions", "idle transactional ids", "MiB in the log"]
    assert found == [f"{size} {name}" for name in names for size in (0, 1, 3)]


def test_every_ratio_can_be_computed_from_what_it_names(measured):
    """It is the row's value over that of the row it is against, or of a figure in its note."""
    rows, _, _ = measured
    for row in rows:
        assert (row["ratio"] is None) or row["against"], row
        if row["ratio"] is None or row["against"] in ELSEWHERE:
            continue
        peers = [
            each["value"]
            for each in of_section(rows, row["section"])
            if (each["work"], each["unit"]) == (row["against"], row["unit"])
        ]
        assert peers, row
        assert [row["value"] / peer for peer in peers] == pytest.approx(
            [row["ratio"]] * len(peers)
        ), row
    elsewhere = [row for row in rows if row["against"] in ELSEWHERE]
    assert {row["against"] for row in elsewhere} == set(ELSEWHERE)
    for row in elsewhere:
        if row["unit"] == "ms":  # the rest says it in its name
            said = float(row["note"].split(": ")[1].removesuffix(" ms"))
            assert row["value"] / said == pytest.approx(row["ratio"], rel=0.01), row


def test_apache_kafka_is_beside_us_where_it_can_be_had_and_else_missed_aloud(measured, has_kafka):
    rows, notes, _ = measured
    for title, count in BESIDE_KAFKA.items():
        beside = [row for row in of_section(rows, title) if "Apache Kafka" in row["against"]]
        assert len(beside) == (count if has_kafka else 0)
    missed = [note for note in notes if note.startswith("Apache Kafka left out: ")]
    assert len(missed) == (0 if has_kafka else len(BESIDE_KAFKA))


def test_the_picture_shows_every_section_row_and_ratio(measured):
    rows, notes, picture = measured
    assert picture.tag == f"{SVG}svg"

    texts = Counter(element.text for element in picture.iter(f"{SVG}text"))
    bars = [e for e in picture.iter(f"{SVG}rect") if (e.get("class") or "").startswith("bar")]

    for title in dict.fromkeys(row["section"] for row in rows):
        assert texts[title] == 1
    assert len(bars) == len(rows)
    assert len(list(picture.iter(f"{SVG}circle"))) == sum(bool(row["ratio"]) for row in rows)
    for work, count in Counter(row["work"] for row in rows).items():
        assert texts[work] == count
    assert all(note[:40] in " ".join(filter(None, texts)) for note in notes)
