"""From values to HTML: everything is escaped, and nothing is inline that the policy forbids."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


class Templates:
    """The console's templates."""

    def __init__(self, folder: Path) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "duration": duration,
            "moment": moment,
            "number": lambda value: f"{value:,}".replace(",", "\u202f"),
        }

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page; `values` are what it shows."""
        state = request.state
        shown = {"cluster_id": "", "servers": "", "store": ""} | values
        content = self._environment.get_template(template).render(
            path=request.url.path,
            form_token=state.form_token,
            is_member=state.is_member,
            **shown,
        )
        return HTMLResponse(content, status)


def duration(milliseconds: int) -> str:
    """A span of time in two units at most."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def moment(milliseconds: int) -> str:
    """A point in time, in UTC."""
    if milliseconds <= 0:
        return ""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
