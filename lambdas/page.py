"""Renders a page: all escaped, no script, headers that keep it out of frames and caches.

In: a template's name and values. Out: a `Response`. Next: `review` fills the one page that asks, `ended` the
pages that only tell.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from training_agent import pictures

from .domain import messages

TEMPLATES = Path(__file__).parent / "templates"
STYLE = (TEMPLATES / "style.css").read_text(encoding="utf-8")
_STYLE_TAG = Markup(STYLE)  # noqa: S704  # our own file, the one thing that is not escaped
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
}

_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([TEMPLATES, pictures.TEMPLATES]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters["when"] = messages.when


@dataclass(frozen=True, slots=True)
class Response:
    """Answer in the HTTP API's payload format 2.0."""

    status: int
    body: str

    def plain(self, *, head: bool = False) -> dict[str, Any]:
        return {
            "statusCode": self.status,
            "headers": dict(HEADERS),
            "body": "" if head else self.body,
            "isBase64Encoded": False,
        }


def page(template: str, status: int, **values: Any) -> Response:
    """Render one template."""
    return Response(status, _environment.get_template(template).render(style=_STYLE_TAG, **values))
