"""The console's front: whatever comes, it answers with a refusal and goes on."""

import asyncio
import socket
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse

from dualwrite.recipes.console import Access, ConsoleServer, create_app
from dualwrite.recipes.console.audit import AuditLog
from dualwrite.recipes.console.guard import COOKIE, Guard
from dualwrite.recipes.console.server import open_port
from tests.fuzz.samples import damage

TOKEN = "a-token-that-is-long-enough"
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"host", b"origin", b"cookie", b"content-type", b"content-length", b"x-forwarded-host"]
        ),
        st.one_of(
            st.sampled_from(
                [
                    b"localhost:1",
                    b"http://localhost:1",
                    b"application/x-www-form-urlencoded",
                    COOKIE.encode() + b"=x",
                ]
            ),
            st.binary(max_size=60),
        ),
    ),
    max_size=8,
)


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT", "get", ""]),
    path=st.one_of(st.sampled_from(["/login", "/metrics", "/static/x", "/"]), st.text(max_size=40)),
    headers=HEADERS,
    body=st.lists(st.binary(max_size=200), max_size=4),
)
def test_guard_lets_no_stranger_through(method, path, headers, body):
    access = Access(TOKEN, ["localhost:1"])
    reached = []

    async def inside(scope, receive, send):
        reached.append(scope["path"])
        await PlainTextResponse("inside")(scope, receive, send)

    statuses = _ask(Guard(inside, access), method, path, headers, body)

    assert len(statuses) == 1
    assert statuses[0] in (200, 303, 400, 403, 405, 413, 415)
    for inner in reached:
        assert inner in ("/login", "/metrics") or inner.startswith("/static/")
        assert method in ("GET", "HEAD")  # a form needs the token that goes with its cookie


def _ask(app, method, path, headers, body):
    statuses = []
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in body]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return messages.pop(0)

    async def send(message):
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": b"",
    }
    asyncio.run(app(scope, receive, send))
    return statuses


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    listening = open_port(0)
    access = Access.on_loopback(TOKEN, listening.getsockname()[1])
    audit = AuditLog(tmp_path_factory.mktemp("fuzz") / "audit")
    config = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 100}
    with ConsoleServer(create_app(config, access, audit), listening) as server:
        yield "127.0.0.1", server.port


def test_server_survives_damaged_requests(address):
    host = f"Host: {address[0]}:{address[1]}\r\n".encode()
    form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 20\r\n"
    honest = [
        b"GET /login HTTP/1.1\r\n" + host + b"\r\n",
        b"POST /login HTTP/1.1\r\n" + host + form + b"\r\ntoken=x&form_token=y",
        b"GET /transactions?q=%ff HTTP/1.1\r\n" + host + b"Cookie: a=b; c\r\n\r\n",
    ]
    random = Random(2023)
    for _ in range(150):
        request = damage(random.choice(honest), random)
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(65_536)
        assert not answer.startswith(b"HTTP/1.1 5"), request
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(honest[0])
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")
