"""The console's pages. Handlers block on the cluster and the database, so they run in threads."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from dualwrite.errors import DualWriteError
from dualwrite.recipes.console.access import Access
from dualwrite.recipes.console.audit import AuditLog
from dualwrite.recipes.console.cluster import ClusterReader
from dualwrite.recipes.console.database import Database
from dualwrite.recipes.console.guard import Guard, cookie_header
from dualwrite.recipes.console.records import (
    PAGE_RECORDS,
    ClusterUnavailable,
    ClusterUnreachable,
)
from dualwrite.recipes.console.templating import Templates

HERE: Final = Path(__file__).parent
ID_CHARS_MAX: Final = 1000
ROWS_MAX: Final = 200
VERDICTS_MAX: Final = 50
OFFSET_MAX: Final = 2**63 - 1

Handler = Callable[[Request], Response]


def create_app(
    config: Mapping[str, Any],
    access: Access,
    audit: AuditLog,
    *,
    store_url: str | None = None,
    table: str | None = None,
    metrics_text: Callable[[], bytes] | None = None,
) -> Starlette:
    """The console as an ASGI application.

    `config` leads to the cluster (librdkafka's keys), `store_url` to the state store whose word
    decides; `metrics_text` is served at `/metrics` if it is given.
    """
    cluster = ClusterReader(config)
    database = Database(store_url, cluster, table) if store_url else None
    templates = Templates(HERE / "templates")
    pages = _Pages(cluster, database, audit, templates)
    routes = [
        Route("/", lambda request: RedirectResponse("/transactions", 303)),
        Route("/transactions", pages.safely(pages.transactions)),
        Route("/transaction", pages.safely(pages.transaction)),
        Route("/transaction/resolve", pages.safely(pages.resolve), methods=["POST"]),
        Route("/transaction/terminate", pages.safely(pages.terminate), methods=["POST"]),
        Route("/topics", pages.safely(pages.topics)),
        Route("/topic", pages.safely(pages.topic)),
        Route("/groups", pages.safely(pages.groups)),
        Route("/group", pages.safely(pages.group)),
        Route("/audit", pages.audit),  # it needs no cluster
        *_login_routes(access, audit, templates),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    if metrics_text is not None:
        routes.append(Route("/metrics", _metrics(metrics_text)))
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={404: pages.not_found},
    )
    app.state.close = pages.close
    return app


def _metrics(metrics_text: Callable[[], bytes]) -> Handler:
    def metrics(request: Request) -> Response:
        return Response(metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return metrics


def _login_routes(access: Access, audit: AuditLog, templates: Templates) -> list[Route]:
    def form(request: Request) -> Response:
        if request.state.is_member:
            return RedirectResponse("/transactions", 303)
        return templates.page(request, "login.html", title="Log in", is_wrong=False)

    def log_in(request: Request) -> Response:
        session = access.log_in(request.state.form.get("token", "").strip())
        if session is None:
            audit.write("login", "", result="refused", client=_client(request))
            return templates.page(request, "login.html", 403, title="Log in", is_wrong=True)
        # A new cookie, so that one planted before the login is worth nothing after it.
        answer = RedirectResponse("/transactions", 303)
        answer.headers["set-cookie"] = cookie_header(session)
        return answer

    def log_out(request: Request) -> Response:
        access.log_out(request.state.session)
        answer = RedirectResponse("/login", 303)
        answer.headers["set-cookie"] = cookie_header("")
        return answer

    return [
        Route("/login", form),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


class _Pages:
    def __init__(
        self,
        cluster: ClusterReader,
        database: Database | None,
        audit: AuditLog,
        templates: Templates,
    ) -> None:
        self._cluster = cluster
        self._database = database
        self._audit = audit
        self._templates = templates

    def close(self) -> None:
        self._cluster.close()
        if self._database is not None:
            self._database.close()

    def safely(self, handler: Handler) -> Handler:
        """Turn a cluster that does not answer, or a wrong number in the address, into a page."""

        def answer(request: Request) -> Response:
            try:
                self._cluster.reach()
                return handler(request)
            except ClusterUnreachable as error:
                return self._failed(request, 502, "The cluster can't be reached", str(error))
            except ClusterUnavailable as error:
                return self._failed(request, 502, "The cluster did not answer", str(error))
            except _BadRequest as error:
                return self._failed(request, 400, "This address can't be read", str(error))

        return answer

    def not_found(self, request: Request, error: Exception) -> Response:
        """The page for an address that leads nowhere."""
        return self._failed(request, 404, "Not found", "There is no such page.")

    def _failed(self, request: Request, status: int, title: str, text: str) -> Response:
        return self._templates.page(request, "failed.html", status, title=title, text=text)

    def _show(self, request: Request, template: str, **values: Any) -> Response:
        return self._templates.page(
            request,
            template,
            cluster_id=self._cluster.cluster_id,
            servers=self._cluster.config["bootstrap.servers"],
            store=self._database.scheme if self._database else "",
            **values,
        )

    # Transactions

    def transactions(self, request: Request) -> Response:
        text = _text(request, "q")
        found = self._cluster.open_transactions(text)
        shows_all = request.query_params.get("show") == "all"
        in_doubt = [one for one in found if one.described.is_two_phase]
        verdicts = {}
        if self._database is not None:
            for one in in_doubt[:VERDICTS_MAX]:
                name = one.described.transactional_id
                verdicts[name] = self._database.verdict(name)
        others = []
        if shows_all:
            opened = {one.described.transactional_id for one in found}
            listed = [
                one for one in self._cluster.listings(text) if one.transactional_id not in opened
            ]
            others = self._cluster.describe(one.transactional_id for one in listed[:ROWS_MAX])
        return self._show(
            request,
            "transactions.html",
            title="Transactions",
            found=found[:ROWS_MAX],
            left_out=max(0, len(found) - ROWS_MAX),
            in_doubt=len(in_doubt),
            held_partitions=len({hold.name for one in found for hold in one.held_partitions}),
            held_records=sum(
                hold.ends.held_back
                for hold in {h.name: h for one in found for h in one.held_partitions}.values()
                if hold.ends
            ),
            oldest_ms=max((one.age_ms for one in found), default=0),
            verdicts=verdicts,
            others=others,
            shows_all=shows_all,
            q=text,
        )

    def transaction(self, request: Request) -> Response:
        return self._transaction(request, _id(request.query_params), "", "")

    def _transaction(
        self, request: Request, name: str, message: str, refusal: str, status: int = 200
    ) -> Response:
        described = self._cluster.describe([name])
        if not described:
            return self._failed(request, 404, "Not known", "The coordinator does not know this id.")
        (judged,) = self._cluster.judge(described)
        verdict = self._database.verdict(name) if self._database else None
        response = self._show(
            request,
            "transaction.html",
            title=name,
            txn=judged,
            verdict=verdict,
            heuristics=self._database.heuristics(name) if self._database else [],
            message=message,
            refusal=refusal,
        )
        response.status_code = status
        return response

    def resolve(self, request: Request) -> Response:
        form = request.state.form
        return self._act(
            request,
            "resolve",
            lambda database, name: f"done: {database.resolve(name, now='now' in form)}",
        )

    def terminate(self, request: Request) -> Response:
        form = request.state.form
        reason = form.get("reason", "").strip() if "heuristic" in form else ""
        if "heuristic" in form and not reason:
            return self._transaction(
                request, _id(form), "", "An abort against the database's word needs a reason.", 409
            )

        def act(database: Database, name: str) -> str:
            database.terminate(name, reason)
            return "done: abort"

        return self._act(request, "force-terminate", act, reason=reason)

    def _act(
        self,
        request: Request,
        action: str,
        act: Callable[[Database, str], str],
        **facts: str,
    ) -> Response:
        name = _id(request.state.form)
        if self._database is None:
            return self._failed(
                request, 409, "No store", "Without the store nobody can know what is decided."
            )
        if request.state.form.get("confirmation", "") != name:
            return self._transaction(
                request, name, "", "The id that was typed is not this transaction's.", 409
            )
        self._audit.write(action, name, result="begun", client=_client(request), **facts)
        try:
            result = act(self._database, name)
        except (DualWriteError, SQLAlchemyError, OSError) as error:
            self._audit.write(action, name, result=f"refused: {error}", client=_client(request))
            return self._transaction(request, name, "", f"Refused: {error}", 409)
        self._audit.write(action, name, result=result, client=_client(request))
        return self._transaction(request, name, f"{action.capitalize()} {result}", "")

    # Topics and groups

    def topics(self, request: Request) -> Response:
        found = self._cluster.topics()
        shows_internal = request.query_params.get("show") == "all"
        shown = [topic for topic in found if shows_internal or not topic.is_internal]
        return self._show(
            request,
            "topics.html",
            title="Topics",
            topics=shown[:ROWS_MAX],
            left_out=max(0, len(shown) - ROWS_MAX),
            internal=sum(topic.is_internal for topic in found),
            shows_internal=shows_internal,
        )

    def topic(self, request: Request) -> Response:
        name = _text(request, "name")
        ends = self._cluster.partitions_of(name)
        partition = _number(request, "partition", 0)
        here = next((end for end in ends if end.partition == partition), None)
        if here is None:
            return self._failed(request, 404, "Not known", "There is no such topic or partition.")
        committed_only = request.query_params.get("isolation") == "read_committed"
        newest = here.last_stable if committed_only else here.high_watermark
        wanted = _number(request, "offset", max(here.start, newest - PAGE_RECORDS))
        offset = min(max(wanted, here.start), newest)
        page = self._cluster.records((name, partition), offset, committed_only=committed_only)
        if page is None:
            return self._failed(request, 502, "No leader", "The partition has no leader now.")
        return self._show(
            request,
            "topic.html",
            title=name,
            name=name,
            ends=ends,
            here=here,
            page=page,
            offset=offset,
            newest=newest,
            isolation="read_committed" if committed_only else "read_uncommitted",
            page_records=PAGE_RECORDS,
        )

    def groups(self, request: Request) -> Response:
        found = self._cluster.groups()
        return self._show(
            request, "groups.html", title="Groups", groups=found[:ROWS_MAX], left_out=0
        )

    def group(self, request: Request) -> Response:
        name = _id(request.query_params)
        found = self._cluster.groups(only=name)
        if not found:
            return self._failed(request, 404, "Not known", "There is no such group.")
        holders: dict[tuple[str, int], list[str]] = {}
        if found[0].waiting:
            for one in self._cluster.open_transactions():
                for hold in one.held_partitions:
                    holders.setdefault(hold.name, []).append(one.described.transactional_id)
        return self._show(request, "group.html", title=name, group=found[0], holders=holders)

    def audit(self, request: Request) -> Response:
        return self._show(
            request, "audit.html", title="Audit", entries=self._audit.recent(ROWS_MAX)
        )


class _BadRequest(Exception):
    pass


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if len(value) > ID_CHARS_MAX:
        raise _BadRequest(f"{name} is too long")
    return value


def _id(fields: Mapping[str, str]) -> str:
    value = fields.get("id", "")
    if not 0 < len(value) <= ID_CHARS_MAX:
        raise _BadRequest("the id is missing or too long")
    return value


def _number(request: Request, name: str, default: int) -> int:
    value = request.query_params.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) < 20) or int(value) > OFFSET_MAX:
        raise _BadRequest(f"{name} must be a number")
    return int(value)


def _client(request: Request) -> str:
    return request.client.host if request.client else ""
