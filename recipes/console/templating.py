"""From values to HTML: everything is escaped, and nothing is inline that the policy forbids."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from dualwrite.spans import duration, moment


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
