"""An operator at a real browser: a stuck prepared transaction is found, explained and resolved.

Needs `playwright` and a Chromium that is installed already (`CHROMIUM` names it if it is elsewhere).
With `CONSOLE_PICTURES=DIR` the pages are kept as pictures.
"""

import os
import secrets
import shutil
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from sqlalchemy import create_engine, make_url, text

from dualwrite import TwoPhaseProducer
from dualwrite.adapters.sql import SqlStore
from tests.console.victim import broker_with_console, kill_writer, make_orders

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

NARROW = {"width": 390, "height": 844}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as running:
        try:
            browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except playwright.Error as error:
            pytest.skip(f"{CHROMIUM} does not start: {error}")
        yield browser
        browser.close()


@pytest.fixture
def url(request, tmp_path):
    """A database of its own: SQLite's, or PostgreSQL's where a test asks for both."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path / 'orders.db'}"
    server = make_url(request.getfixturevalue("postgres_url"))
    name = f"console_{secrets.token_hex(4)}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.set(database=name).render_as_string(hide_password=False)


on_both_databases = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def stuck(tmp_path, url):
    """Order 7 is in the database and prepared in Kafka; whoever wrote it is dead."""
    make_orders(url)
    with broker_with_console(tmp_path, url) as broker:
        broker.url = url
        kill_writer(broker.bootstrap, url, 1, 7, "committed")
        yield broker


class Reader:
    """A read_committed reader in a group, which commits what it has read."""

    def __init__(self, bootstrap):
        self.keys = []
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "billing",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(["orders"])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error():
                continue
            self._consumer.commit(message, asynchronous=False)
            with self._changed:
                self.keys.append(int(message.key()))
                self._changed.notify_all()

    def wait_for(self, key):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self.keys, 30), self.keys

    def close(self):
        self._stop.set()
        self._thread.join()
        self._consumer.close()


@pytest.fixture
def reader(stuck):
    reader = Reader(stuck.bootstrap)
    yield reader
    reader.close()


def pictures(page, name):
    folder = os.environ.get("CONSOLE_PICTURES")
    if not folder:
        return
    wide = page.viewport_size
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=Path(folder) / f"{name}-{scheme}.png")
        page.set_viewport_size(NARROW)
        page.screenshot(path=Path(folder) / f"{name}-{scheme}-narrow.png", full_page=True)
        page.set_viewport_size(wide)
    page.emulate_media(color_scheme="light")


@pytest.fixture
def page(browser, stuck):
    context = browser.new_context(viewport={"width": 1280, "height": 760})
    page = context.new_page()
    page.violations = []
    page.on("console", lambda message: page.violations.append(message.text))
    page.on("pageerror", lambda error: page.violations.append(str(error)))
    page.goto(stuck.address)
    pictures(page, "login")
    page.get_by_label("Token").fill(stuck.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/transactions")
    yield page
    # A page that its own policy forbids anything would say so here.
    assert page.violations == []
    context.close()


@on_both_databases
def test_stuck_transaction_is_found_explained_and_resolved(stuck, reader, page):
    reader.wait_for(6)
    page.reload()
    row = page.get_by_role("row").filter(has_text="demo-0")
    assert "in doubt" in row.inner_text()
    assert "billing" in row.inner_text()
    assert "commit" in row.inner_text()
    pictures(page, "transactions")

    row.get_by_role("link", name="demo-0").click()
    verdict = page.locator(".verdict").inner_text()
    assert "commit" in verdict
    assert "the pairs are equal" in verdict
    button = page.get_by_role("button", name="Resolve")
    assert button.is_disabled()
    pictures(page, "transaction")

    page.locator("#resolve-id").fill("demo-0")
    button.click()
    assert "done: commit" in page.get_by_role("status").inner_text()
    reader.wait_for(7)
    assert reader.keys == [1, 2, 3, 4, 5, 6, 7]
    page.get_by_role("link", name="Audit").click()
    assert "done: commit" in page.locator("tbody tr").first.inner_text()


@on_both_databases
def test_forced_end_is_refused_then_written_down_and_readers_move_on(stuck, reader, page):
    """The database has committed it, so it takes a heuristic decision with a reason."""
    reader.wait_for(6)
    page.goto(f"{stuck.address}/transactions")
    page.get_by_role("link", name="demo-0").click()
    page.locator("#terminate-id").fill("demo-0")
    page.get_by_role("button", name="Force-terminate").click()
    assert "the database has committed" in page.get_by_role("alert").inner_text()
    pictures(page, "refused")
    # The refusal has a status of its own, which browsers note; nothing else was noted.
    assert all("409" in noted for noted in page.violations)
    page.violations.clear()

    page.get_by_label("even against or without the database's word").check()
    page.get_by_label("Reason").fill("order 7 was cancelled by telephone")
    page.locator("#terminate-id").fill("demo-0")
    page.get_by_role("button", name="Force-terminate").click()
    assert "done: abort" in page.get_by_role("status").inner_text()
    assert "order 7 was cancelled by telephone" in page.locator(".verdict").inner_text()
    pictures(page, "terminated")

    store = SqlStore(engine := create_engine(stuck.url))
    (forced,) = store.heuristics()
    engine.dispose()
    assert (forced.transactional_id, forced.action) == ("demo-0", "abort")
    assert forced.reason == "order 7 was cancelled by telephone"
    send(stuck.bootstrap, 8)
    reader.wait_for(8)
    assert reader.keys == [1, 2, 3, 4, 5, 6, 8]
    page.get_by_role("link", name="Audit").click()
    assert "order 7 was cancelled by telephone" in page.locator("tbody").inner_text()
    pictures(page, "audit")


@pytest.mark.parametrize(
    "path", ["transactions", "topics", "groups", "audit", "transaction?id=demo-0"]
)
def test_no_page_is_wider_than_a_telephone(stuck, page, path):
    page.set_viewport_size(NARROW)
    page.goto(f"{stuck.address}/{path}")

    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"]


def send(bootstrap, key):
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", key=str(key), value="x", partition=0)
    assert producer.flush(10) == 0


def test_records_show_what_became_of_them(stuck, page):
    producer = TwoPhaseProducer(
        {"bootstrap.servers": stuck.bootstrap, "transactional.id": "refunds-0"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", key=b"8", value=b'<script>alert("xss")</script>')
    producer.flush()
    producer.abort_transaction()
    producer.close()

    page.get_by_role("link", name="Topics").click()
    page.get_by_role("link", name="orders", exact=True).click()
    table = page.locator("table.records")
    assert 'alert("xss")' in table.inner_text()
    pictures(page, "records")
    fates = table.locator(".fate").all_inner_texts()
    assert fates.count("committed") == 6
    assert fates[-3:] == ["open", "aborted", "abort marker"]
    page.get_by_role("link", name="read_committed").click()
    shown = page.locator("table.records tbody tr")
    assert shown.count() == 6


def test_console_works_without_scripts(browser, stuck):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(stuck.address)
    page.get_by_label("Token").fill(stuck.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="demo-0").click()
    page.locator("#resolve-id").fill("demo-1")
    page.get_by_role("button", name="Resolve").click()
    assert "not this transaction's" in page.get_by_role("alert").inner_text()
    page.locator("#resolve-id").fill("demo-0")
    page.get_by_role("button", name="Resolve").click()
    assert "done: commit" in page.get_by_role("status").inner_text()
    context.close()
