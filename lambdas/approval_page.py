"""The review page behind the mailed link: GET shows, POST decides (API Gateway HTTP API, payload 2.0)."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def show(event: Event, context: Any) -> Event:
    """GET and HEAD: the evidence and the form; never changes anything."""
    raise NotImplementedError


def decide(event: Event, context: Any) -> Event:
    """POST: typed value and reason, single use by conditional write, then the callback."""
    raise NotImplementedError
