"""One file per step, in the order of the flow; each turns an incident into its next state."""

from __future__ import annotations

from . import (
    cluster_events,
    confirm,
    contain,
    decide,
    drill,
    ingest,
    locate,
    reconcile,
    register,
    replace,
    replace_by_label,
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
    "replace_by_label",
    "verify",
    "resume",
    "reconcile",
    "cluster_events",
    "drill",
]
