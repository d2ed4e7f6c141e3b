"""Every rule of the console's security, by requests that a browser would never or might be made to send."""

import html
import re
import stat
from contextlib import contextmanager
from html.parser import HTMLParser
from urllib.parse import quote

import httpx
import pytest

from dualwrite import TwoPhaseProducer
from dualwrite.errors import ConfigurationError
from dualwrite.recipes.console import Access, ConsoleServer, create_app, read_or_create_token
from dualwrite.recipes.console.access import SESSIONS_MAX
from dualwrite.recipes.console.audit import AuditLog
from dualwrite.recipes.console.guard import BODY_BYTES_MAX, COOKIE
from dualwrite.recipes.console.server import open_port
from tests.dualwrite.crashed import CrashedInstance

TOKEN = "a-token-that-is-long-enough"
BRIEF = {"max.block.ms": 5000}


class Tags(HTMLParser):
    """Finds what the policy would have to stop: inline code, and content from elsewhere."""

    def __init__(self):
        super().__init__()
        self.forbidden = []

    @classmethod
    def of(cls, text):
        parser = cls()
        parser.feed(text)
        return parser

    def handle_starttag(self, tag, attributes):
        names = {name for name, _ in attributes}
        sources = [value for name, value in attributes if name in ("src", "href", "action")]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.forbidden.append(tag)
        self.forbidden += [name for name in names if name.startswith("on") or name == "style"]
        self.forbidden += [source for source in sources if not source.startswith("/")]


class Browser:
    """A client that behaves as a browser does: cookies, and Origin with each form."""

    def __init__(self, address):
        self.address = address
        self.http = httpx.Client(base_url=address, timeout=30)

    def get(self, path, **options):
        return self.http.get(path, **options)

    def form_token(self, path="/login"):
        return re.search(r'name="form_token" value="([0-9a-f]+)"', self.get(path).text)[1]

    def post(self, path, fields, headers=None, form_token=None):
        if form_token is None:
            form_token = self.form_token("/audit" if path != "/login" else path)
        fields = {"form_token": form_token, **fields}
        origin = {"origin": self.address} if headers is None else headers
        return self.http.post(path, data=fields, headers=origin)

    def log_in(self, token=TOKEN):
        return self.post("/login", {"token": token})


@contextmanager
def serving(bootstrap, audit, settings=BRIEF, **options):
    """A console on a free port; gives its address."""
    listening = open_port(0)
    access = Access.on_loopback(TOKEN, listening.getsockname()[1])
    app = create_app({"bootstrap.servers": bootstrap, **settings}, access, audit, **options)
    with ConsoleServer(app, listening) as server:
        yield f"http://127.0.0.1:{server.port}"


@contextmanager
def browsing(address, *, member):
    browser = Browser(address)
    if member:
        assert browser.log_in().status_code == 303
    yield browser
    browser.http.close()


@pytest.fixture(scope="module")
def shared_audit(tmp_path_factory):
    return AuditLog(tmp_path_factory.mktemp("console") / "audit.jsonl")


@pytest.fixture(scope="module")
def shared_console(shared_broker, shared_audit):
    """One without a store, for the rules that hold whatever is shown."""
    bootstrap = shared_broker.bootstrap_servers
    with serving(bootstrap, shared_audit, metrics_text=lambda: b"dualwrite_up 1\n") as address:
        yield address


@pytest.fixture
def stranger(shared_console):
    with browsing(shared_console, member=False) as browser:
        yield browser


@pytest.fixture
def member(shared_console):
    with browsing(shared_console, member=True) as browser:
        yield browser


@pytest.fixture
def audit(tmp_path):
    return AuditLog(tmp_path / "audit.jsonl")


@pytest.fixture
def operator(sqlite_world, audit):
    """Somebody who has logged in to a console with a store."""
    options = {"store_url": sqlite_world.url, "table": sqlite_world.state_table}
    with (
        serving(sqlite_world.bootstrap, audit, **options) as address,
        browsing(address, member=True) as browser,
    ):
        yield browser


@pytest.fixture
def undecided(sqlite_world):
    crashed = CrashedInstance(sqlite_world, f"{sqlite_world.app}-0").prepare(1)
    crashed.die()
    return crashed


@pytest.fixture
def decided(sqlite_world):
    crashed = CrashedInstance(sqlite_world, f"{sqlite_world.app}-0").prepare(1).decide()
    crashed.die()
    return crashed


PAGES = ["/", "/transactions", "/transaction?id=x", "/topics", "/topic?name=x", "/groups"]
PAGES += ["/group?id=x", "/audit", "/nowhere", "/transaction/resolve"]


# Login


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_there_is_only_the_login(stranger, path):
    answer = stranger.get(path)

    assert answer.status_code == 303
    assert answer.headers["location"] == "/login"


def test_wrong_token_opens_nothing_and_is_audited(stranger, shared_audit):
    answer = stranger.log_in("not the token")

    assert answer.status_code == 403
    assert stranger.get("/transactions").status_code == 303
    assert shared_audit.recent(1)[0]["result"] == "refused"
    assert "not the token" not in shared_audit.path.read_text()


def test_login_gives_a_new_cookie_that_scripts_and_other_sites_never_get(stranger):
    stranger.get("/login")
    before = stranger.http.cookies[COOKIE]
    answer = stranger.log_in()
    cookie = answer.headers["set-cookie"]

    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert stranger.http.cookies[COOKIE] != before
    assert stranger.get("/transactions").status_code == 200


def test_made_up_cookie_is_no_session(stranger):
    stranger.http.cookies.set(COOKIE, "made-up", domain="127.0.0.1")

    assert stranger.get("/transactions").status_code == 303


def test_log_out_ends_the_session(member):
    session = member.http.cookies[COOKIE]
    assert member.post("/logout", {}).status_code == 303

    member.http.cookies.set(COOKIE, session, domain="127.0.0.1")
    assert member.get("/transactions").status_code == 303


def test_sessions_are_bounded():
    access = Access(TOKEN, ["localhost:1"])
    sessions = [access.log_in(TOKEN) for _ in range(SESSIONS_MAX + 5)]

    assert sum(map(access.knows, sessions)) == SESSIONS_MAX
    assert access.knows(sessions[-1])


def test_token_file_is_made_private_and_read_only_if_private(tmp_path):
    path = tmp_path / "new" / "token"
    token = read_or_create_token(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_create_token(path) == token
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="0600"):
        read_or_create_token(path)


def test_short_token_is_refused(tmp_path):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("short")

    with pytest.raises(ConfigurationError, match="characters"):
        read_or_create_token(path)


# Host, Origin, methods


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:80", ""])
@pytest.mark.parametrize("path", ["/login", "/metrics", "/static/console.css", "/transactions"])
def test_another_name_is_not_served(member, host, path):
    assert member.get(path, headers={"host": host}).status_code in (400, 403)


def test_localhost_is_served(member):
    port = member.http.base_url.port

    assert member.get("/metrics", headers={"host": f"localhost:{port}"}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1"])
def test_another_origin_is_refused(member, origin):
    assert member.post("/logout", {}, headers={"origin": origin}).status_code == 403
    assert member.get("/transactions", headers={"origin": origin}).status_code == 403


def test_form_without_an_origin_is_refused(member):
    assert member.post("/logout", {}, headers={}).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(member, method):
    assert member.http.request(method, "/transactions").status_code == 405


# Forged and damaged forms


@pytest.mark.parametrize("path", ["/logout", "/transaction/resolve", "/transaction/terminate"])
@pytest.mark.parametrize("token", ["", "0" * 64, "é"])
def test_form_needs_the_token_of_its_session(member, path, token):
    answer = member.post(path, {"id": "x", "token": TOKEN}, form_token=token)

    assert answer.status_code == 403


def test_login_needs_the_token_of_its_page(stranger):
    stranger.get("/login")

    assert stranger.post("/login", {"token": TOKEN}, form_token="0" * 64).status_code == 403


def test_form_token_of_another_session_is_refused(shared_console, member):
    other = Browser(shared_console)
    other.log_in()
    foreign = other.form_token("/transactions")
    other.http.close()

    assert member.post("/logout", {}, form_token=foreign).status_code == 403


def test_form_of_a_stranger_does_nothing(stranger, sqlite_world, undecided):
    name = undecided.transactional_id
    token = stranger.form_token()
    answer = stranger.http.post(
        "/transaction/terminate",
        data={"id": name, "confirmation": name, "form_token": token},
        headers={"origin": stranger.address},
    )

    assert answer.status_code == 403
    assert sqlite_world.records("read_uncommitted") == [1]


def test_large_form_is_refused(member):
    fields = {"id": "x" * (BODY_BYTES_MAX + 1)}

    assert member.post("/transaction/resolve", fields).status_code == 413


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "application/json", 415),
        (b"--x\r\n", "multipart/form-data; boundary=x", 415),
        (b"\xff\xfe=1", "application/x-www-form-urlencoded", 400),
        (b"a=1&" * 100, "application/x-www-form-urlencoded", 400),
    ],
)
def test_only_small_plain_forms_are_taken(member, body, kind, status):
    headers = {"origin": member.address, "content-type": kind}

    assert member.http.post("/logout", content=body, headers=headers).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        "/topic?name=orders&partition=-1",
        "/topic?name=orders&partition=1e9",
        "/topic?name=orders&offset=99999999999999999999999",
        "/transaction",
        "/transaction?id=" + "x" * 1001,
        "/transactions?q=" + "x" * 1001,
        "/topic?name=" + "x" * 1001,
    ],
)
def test_wrong_addresses_are_refused(member, path):
    assert member.get(path).status_code in (400, 404)


@pytest.mark.parametrize(
    "path", ["/transactions?q=", "/transaction?id=", "/topic?name=", "/group?id=", "/topic?offset="]
)
def test_any_text_in_an_address_is_answered(member, path):
    for text in (
        "\0",
        "%",
        "../../etc",
        "é😀",
        "a" * 999,
        "' OR 1=1 --",
        "{{7*7}}",
        "\u202e",
        "\ud7ff",
    ):
        answer = member.get(path + quote(text))
        assert answer.status_code in (200, 400, 404)
        assert Tags.of(answer.text).forbidden == []


def test_overlong_address_is_refused(member):
    assert member.get("/transactions?q=" + "x" * 60_000).status_code == 400


# What every answer carries


@pytest.mark.parametrize(
    "path", ["/login", "/transactions", "/static/console.js", "/metrics", "/x"]
)
def test_every_answer_forbids_foreign_content(member, path):
    headers = member.get(path).headers
    policy = headers["content-security-policy"]

    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_static_files_end_at_their_folder(member):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd"):
        assert member.get(path).status_code == 404


def test_an_address_that_leads_nowhere_has_a_page_too(member):
    answer = member.get("/nowhere")

    assert answer.status_code == 404
    assert "There is no such page." in answer.text
    assert "/transactions" in answer.text


def test_metrics_need_no_login(stranger):
    assert stranger.get("/metrics").text == "dualwrite_up 1\n"


# Contents are text


def test_ids_and_records_are_shown_as_text(operator, sqlite_world):
    evil = "<img src=x onerror=alert(1)>\"'"
    producer = TwoPhaseProducer(
        {"bootstrap.servers": sqlite_world.bootstrap, "transactional.id": evil}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(
        sqlite_world.topic, key=evil.encode(), value=evil.encode(), headers={evil: evil.encode()}
    )
    producer.flush()

    pages = [
        operator.get("/transactions"),
        operator.get("/transaction", params={"id": evil}),
        operator.get("/topic", params={"name": sqlite_world.topic}),
        operator.get("/transactions", params={"q": evil}),
        operator.get("/group", params={"id": evil}),
    ]
    producer.abort_transaction()
    producer.close()

    for page in pages[:4]:
        assert page.status_code == 200
        assert evil in html.unescape(page.text)
    for page in pages:
        assert Tags.of(page.text).forbidden == []


def test_bytes_that_are_no_text_are_shown_in_hex(operator, sqlite_world):
    producer = TwoPhaseProducer(
        {"bootstrap.servers": sqlite_world.bootstrap, "transactional.id": "b"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(sqlite_world.topic, key=b"\xff\x00", value=b"x" * 100_000)
    producer.commit_transaction()
    producer.close()

    page = operator.get("/topic", params={"name": sqlite_world.topic}).text

    assert "ff 00" in page
    assert len(page) < 20_000


# Actions


def test_resolve_needs_the_id_typed(operator, sqlite_world, decided):
    name = decided.transactional_id

    refused = operator.post("/transaction/resolve", {"id": name, "confirmation": name[:-1]})
    assert refused.status_code == 409
    assert sqlite_world.records() == []
    done = operator.post("/transaction/resolve", {"id": name, "confirmation": name})
    assert "done: commit" in done.text
    sqlite_world.assert_agree([1])


def test_force_terminate_never_overrules_the_database_by_accident(
    operator, sqlite_world, decided, audit
):
    name = decided.transactional_id
    fields = {"id": name, "confirmation": name}

    assert operator.post("/transaction/terminate", fields).status_code == 409
    assert operator.post("/transaction/terminate", {**fields, "heuristic": "on"}).status_code == 409
    assert sqlite_world.store.heuristics(name) == []
    forced = {**fields, "heuristic": "on", "reason": "readers <b>wait</b>"}
    done = operator.post("/transaction/terminate", forced)

    assert "done: abort" in done.text
    assert "readers &lt;b&gt;wait" in done.text
    (entry,) = sqlite_world.store.heuristics(name)
    assert (entry.reason, entry.recorded_by) == ("readers <b>wait</b>", "console")
    results = [(e["action"], e["result"]) for e in reversed(audit.recent(10))]
    assert results[0] == ("force-terminate", "begun")
    assert results[1][1].startswith("refused: the database has committed")
    assert results[-1] == ("force-terminate", "done: abort")
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_transaction_of_another_database_is_left_alone(operator, sqlite_world):
    name = f"foreign-of-{sqlite_world.app}"
    producer = TwoPhaseProducer(
        {
            "bootstrap.servers": sqlite_world.bootstrap,
            "transactional.id": name,
            "transaction.two.phase.commit.enable": True,
        }
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(sqlite_world.topic, key=b"1", value=b"x")
    state = producer.prepare_transaction()

    page = operator.get("/transaction", params={"id": name}).text
    fields = {"id": name, "confirmation": name}

    assert "another database may decide" in page
    assert operator.post("/transaction/resolve", fields).status_code == 409
    assert operator.post("/transaction/terminate", fields).status_code == 409
    assert producer.complete_transaction(state) == "committed"
    producer.close()


def test_without_a_store_there_are_no_actions(member, sqlite_world, undecided):
    name = undecided.transactional_id
    page = member.get("/transaction", params={"id": name}).text

    assert "force-terminate" not in page.lower()
    fields = {"id": name, "confirmation": name}
    assert member.post("/transaction/terminate", fields).status_code == 409
    assert sqlite_world.records("read_uncommitted") == [1]


@pytest.mark.parametrize("method", ["get", "post"])
def test_cluster_that_cannot_be_reached_is_a_page_soon(audit, method):
    """However long its answers may take, nobody waits that long (here for ever) for the first one."""
    patient = {"max.block.ms": 2**31 - 1}
    with (
        serving("127.0.0.1:1", audit, patient) as address,
        browsing(address, member=True) as browser,
    ):
        if method == "get":
            answer = browser.get("/transactions")
        else:
            answer = browser.post("/transaction/resolve", {"id": "x", "confirmation": "x"})
        told = html.unescape(answer.text)
        written = browser.get("/audit")

    assert answer.status_code == 502
    assert "The cluster can't be reached" in told
    assert "No broker answers at 127.0.0.1:1: " in told
    assert written.status_code == 200  # what was done is known without the cluster
    assert "begun" not in written.text


def test_console_is_served_on_loopback_only():
    with pytest.raises(ConfigurationError, match="loopback"):
        open_port(0, "0.0.0.0")
