"""Power loss of a machine on which everything runs: broker, database and writer, on one image.

At random moments of a dual writer's work all processes are stopped and the image is copied. Each copy is
booted: database and broker start on what is left, the application recovers, and both sides must agree.

    pytest -s tests/faults/test_power_loss_of_dual_writes.py
"""

import itertools
import os
import random
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite import DualWriteError
from dualwrite.broker import BrokerProcess
from dualwrite.broker.broker_process import import_path, python_module
from tests.crash.oracle import assert_nothing_hangs, open_transactions
from tests.crash.places import Case
from tests.dualwrite.world import read_committed
from tests.faults.dual_writing import VALUES, Report, order
from tests.faults.images import IMAGE_BYTES, make_image, mounted, pull_the_plug
from tests.faults.test_power_loss import BUSY, INSIDE_SHARE, PAUSE_MAX, SETTINGS
from tests.servers.postgres import PostgresServer
from tests.servers.processes import ServerUnavailable

IMAGES = 4
IMAGES_LONG = 50
IMAGES_PER_LIFE = 2
# Of so many images recovery must have found an order that Kafka had still to be told to commit.
AHEAD_SHARE = 0.1
# Lines of the writer's report between two images: a few orders.
LINES = (25, 120)
APP, TOPIC = "shop", "orders-shop"
AFTERWARDS = 10**6
JOURNALS = ("wal", "delete")
KAFKA_COMMITS = ("wait", "background")
POSTGRES_BYTES = 160 * 2**20
# Checkpoints fall into a short life, too.
POSTGRES_OPTIONS = ("max_wal_size=4MB", "min_wal_size=2MB")


class PostgresOnImage(PostgresServer):
    """Its data is in a directory of a mounted image."""

    def __init__(self, data):
        super().__init__(POSTGRES_OPTIONS)
        self._data = data
        (self._dir / "data").symlink_to(data)

    @property
    def pid(self):
        assert self._process is not None
        return self._process.pid

    def make(self):
        self._data.mkdir(mode=0o700)
        os.chown(self._data, self._account.uid, self._account.gid)
        initdb = (self._bin / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust")
        small = ("-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
        self._account.run((*initdb, *small), cwd=self._dir)


@contextmanager
def postgresql(root):
    """URL and processes."""
    server = PostgresOnImage(root / "postgres")
    try:
        server.start()
        yield server.url, [server.pid]
    finally:
        server.remove()


@contextmanager
def sqlite(root):
    """A database without processes: the writer's is one."""
    yield f"sqlite:///{root / 'orders.db'}", []


DATABASES = {"postgresql": postgresql, "sqlite": sqlite}


def make_base(memory, kind):
    """An image on which the database can be started."""
    base = memory / "base"
    make_image(base, POSTGRES_BYTES if kind == "postgresql" else IMAGE_BYTES)
    if kind == "postgresql":
        with mounted(base, memory / "mount") as root:
            try:
                server = PostgresOnImage(root / "postgres")
                server.make()
            except ServerUnavailable as missing:
                pytest.skip(str(missing))
            server.remove()
    return base


def make_shop(case, journal):
    """What the writer finds: its tables and its topic."""
    case.place.create()
    if case.kind == "sqlite":
        with closing(sqlite3.connect(case.address.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
    admin = AdminClient({"bootstrap.servers": case.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(20)


@contextmanager
def writing(memory, case, report, kafka_commit, *more):
    command = [*python_module("tests.faults.dual_writing"), case.to_json(), report, kafka_commit]
    report.write_text("")
    with (memory / "writer.log").open("ab") as log:
        writer = subprocess.Popen(
            [*command, *more], stdout=log, stderr=log, env=os.environ | import_path()
        )
    try:
        yield writer
    finally:
        writer.kill()
        writer.wait()


def take_images(memory, base, kind, chance, *, journal, kafka_commit, more=()):
    """One life of the writer; gives copies of the image with what it had said by then."""
    image, report = memory / "image", memory / "report"
    shutil.copy(base, image)
    found = []
    with ExitStack() as stack:
        root = stack.enter_context(mounted(image, memory / "mount"))
        broker = stack.enter_context(
            BrokerProcess(root / "broker", settings=SETTINGS, command=BUSY)
        )
        url, servers = stack.enter_context(DATABASES[kind](root))
        case = Case(kind, url, broker.bootstrap_servers, APP, TOPIC)
        make_shop(case, journal)
        writer = stack.enter_context(writing(memory, case, report, kafka_commit, *more))
        processes = [broker.pid, *servers, writer.pid]
        lines = 0
        for number in range(IMAGES_PER_LIFE):
            lines += chance.randint(*LINES)
            wait_for(writer, memory, report, lines, chance.uniform(0, PAUSE_MAX))
            chance.shuffle(processes)  # whoever is stopped last waits for those before
            target = memory / f"copy-{number}"
            said = pull_the_plug(processes, image, target, lambda: Report.read(report))
            found.append((target, said))
    return found


def wait_for(writer, memory, report, lines, pause):
    """Go on when the writer has said so much, and a little later."""
    while len(Report.read(report).lines) < lines and writer.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            writer.wait(0.002)
    with suppress(subprocess.TimeoutExpired):
        writer.wait(pause)
    assert writer.poll() is None, (memory / "writer.log").read_text()


def boot(memory, image, kind, said):
    """Start everything on what is left, and judge it; gives counts."""
    with ExitStack() as stack:
        root = stack.enter_context(mounted(image, memory / "mount"))
        broker = stack.enter_context(BrokerProcess(root / "broker", settings=SETTINGS))
        url, _ = stack.enter_context(DATABASES[kind](root))
        case = Case(kind, url, broker.bootstrap_servers, APP, TOPIC)
        place = case.place
        stack.callback(place.close)
        seen = len(read_committed(case.bootstrap, case.topic))
        ahead = len(place.orders()) - seen // len(VALUES)
        with case.writer(place) as dw:
            orders = judge(case, place, said)
            order(case, dw, place, AFTERWARDS)
            assert judge(case, place, said) == orders | {AFTERWARDS}
    return {
        "images": 1,
        "orders judged": len(said.orders("begin")),
        "inside a transaction": said.is_inside,
        "database ahead": ahead,
    }


def judge(case, place, said):
    """Both sides have the same orders, once, and none that was reported is missing."""
    assert open_transactions(case) == []
    assert_nothing_hangs(case)
    rows = place.orders()
    records = read_committed(case.bootstrap, case.topic)
    expected = [(str(number).encode(), value) for number in rows for value in VALUES]
    assert sorted(records) == sorted(expected), "the two sides differ"
    orders = set(rows)
    lost = said.orders("done") - orders
    assert not lost, f"reported as committed and lost: {lost}"
    assert orders <= (said.orders("begin") | {AFTERWARDS}) - said.orders("undone")
    return orders


def is_enough(count, wanted):
    return (
        count["images"] >= wanted
        and count["inside a transaction"] >= wanted * INSIDE_SHARE
        and count["database ahead"] >= wanted * AHEAD_SHARE
    )


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", DATABASES)
def test_both_sides_agree_after_a_power_loss(memory, request, seed, kind):
    chance = random.Random(seed)
    wanted = IMAGES_LONG if request.config.getoption("--long") else IMAGES
    base = make_base(memory, kind)
    count, steps = Counter(), Counter()
    for life in itertools.count():
        ways = {"journal": JOURNALS[life % 2], "kafka_commit": KAFKA_COMMITS[life // 2 % 2]}
        for image, said in take_images(memory, base, kind, chance, **ways):
            count.update(boot(memory, image, kind, said))
            steps[said.step] += 1
        print(dict(count), dict(steps), flush=True)
        if is_enough(count, wanted):
            break


@pytest.mark.slow
def test_a_database_that_does_not_sync_is_found_out(memory, seed):
    """SQLite's WAL with synchronous=NORMAL, which the store refuses or forces."""
    base = make_base(memory, "sqlite")
    ways = {"journal": "wal", "kafka_commit": "wait", "more": ("unsafe",)}
    image, said = take_images(memory, base, "sqlite", random.Random(seed), **ways)[-1]
    assert said.orders("done")
    with pytest.raises((AssertionError, DualWriteError)) as found:
        boot(memory, image, "sqlite", said)
    print(found.value)
