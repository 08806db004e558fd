"""Pages from templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from moorage import __version__

HERE = Path(__file__).parent
#: No script, style or connection but our own; Airflow frames the page from the same origin.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def _script_json(value: object) -> str:
    """JSON for a script element: nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


TEMPLATES = Environment(
    loader=PackageLoader("moorage.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["script_json"] = _script_json
TEMPLATES.globals["version"] = __version__


def page(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from its template."""
    return HTMLResponse(TEMPLATES.get_template(name).render(values), status, HEADERS)
