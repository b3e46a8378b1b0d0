"""Moments on the wire: UTC, ISO 8601 with Z."""

from __future__ import annotations

from datetime import datetime, timezone


def stamp(moment: datetime) -> str:
    """Write an aware datetime as UTC with microseconds and Z; these strings sort by time."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(text: str) -> datetime:
    """Read what `stamp` or the agent wrote.

    Raises:
        ValueError: not ISO 8601, or without a time zone.
    """
    value = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if value.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return value.astimezone(timezone.utc)
