"""The rules that hold for every request, in one place that no page can forget.

In front of all routes: Host and Origin allow-lists (DNS rebinding, forged posts), a bounded body, a
session for everything but the login page, the static files and the metrics, a form token on every
POST; behind them: headers that let the page load nothing but its own files.
"""

import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualwrite.recipes.console.access import SESSION_SECONDS, Access

COOKIE: Final = "dualwrite_console"
BODY_BYTES_MAX: Final = 16 * 1024
FORM_FIELDS_MAX: Final = 16
OPEN_PATHS: Final = ("/login", "/metrics")
STATIC: Final = "/static/"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

SECURITY_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not no-referrer: with it browsers send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Guard:
    """ASGI middleware around the whole console."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no websockets, and nothing to do at start and end
        send = _with_headers(scope, send)
        answer: ASGIApp = self._app
        try:
            answer = await self._admit(scope, receive) or self._app
        except _Refused as refused:
            answer = PlainTextResponse(refused.reason + "\n", refused.status)
        await answer(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive) -> Response | None:
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        self._check_names(headers, method)
        cookie = _cookie(headers)
        is_member = self._access.knows(cookie)
        state = scope.setdefault("state", {})
        state["form"] = {}
        if not is_member and not path.startswith(STATIC) and path not in OPEN_PATHS:
            if method == "POST":
                raise _Refused(403, "log in first")
            return RedirectResponse("/login", 303)
        if method == "POST":
            form = _parse(await _read_body(headers, receive))
            if not cookie or not self._access.is_form_token(cookie, form.get("form_token", "")):
                raise _Refused(403, "the form is not from this session: load the page again")
            state["form"] = form
        if not cookie:
            # Before the login the cookie is only the other half of the form's token.
            cookie = secrets.token_urlsafe(32)
            state["new_cookie"] = cookie
        state["session"] = cookie
        state["is_member"] = is_member
        state["form_token"] = self._access.form_token(cookie)
        return None

    def _check_names(self, headers: Headers, method: str) -> None:
        if method not in ("GET", "HEAD", "POST"):
            raise _Refused(405, "only GET and POST are served")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._access.hosts:
            raise _Refused(403, "this name is not served here")
        origins = headers.getlist("origin")
        if any(origin not in self._access.origins for origin in origins):
            raise _Refused(403, "another site's page asks")
        if method == "POST" and len(origins) != 1:
            raise _Refused(403, "a form must say where it comes from")


def _cookie(headers: Headers) -> str:
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return ""
    return jar[COOKIE].value if COOKIE in jar else ""


async def _read_body(headers: Headers, receive: Receive) -> bytes:
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise _Refused(415, "only plain forms are taken")
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Refused(400, "the form was cut short")
        body += bytes(message.get("body", b""))
        if len(body) > BODY_BYTES_MAX:
            raise _Refused(413, "the form is too large")
        if not message.get("more_body", False):
            return body


def _parse(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            max_num_fields=FORM_FIELDS_MAX,
            errors="strict",
        )
    except ValueError:
        raise _Refused(400, "the form can't be read") from None
    return dict(pairs)


def _with_headers(scope: Scope, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(SECURITY_HEADERS)
            if not scope["path"].startswith(STATIC):
                headers["cache-control"] = "no-store"
            new_cookie = scope.get("state", {}).get("new_cookie")
            if new_cookie is not None:
                headers.append("set-cookie", cookie_header(new_cookie))
        await send(message)

    return send_with_headers


def cookie_header(value: str) -> str:
    """The cookie: out of scripts' reach, never sent along with other sites' requests."""
    age = SESSION_SECONDS if value else 0
    return f"{COOKIE}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={age}"
