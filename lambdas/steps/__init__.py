"""One file per step, in the order of the flow; each turns an incident into its next state."""

from __future__ import annotations

from . import (
    confirm,
    contain,
    decide,
    ingest,
    locate,
    register,
    replace,
    request_approval,
    resume,
    verify,
)

__all__ = [
    "register",
    "ingest",
    "locate",
    "contain",
    "decide",
    "confirm",
    "request_approval",
    "replace",
    "verify",
    "resume",
]
