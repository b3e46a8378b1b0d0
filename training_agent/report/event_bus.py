"""Puts events on the pipeline's bus, in batches, and tells which of them the bus did not take.

In: entries from `report.publisher`. Out: `PutEvents`; answers with HTTP 200 can hold failed entries
(segmentio/action-destinations#2828), and a call with more than 10 entries fails as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..contract import EVENT_SOURCE, MAX_DETAIL_BYTES, Alarm, DetailType, encode
from ..spool import name_of

T = TypeVar("T")

MAX_ENTRIES = 10  # of one PutEvents call
MAX_CALL_BYTES = 250_000  # below the 256 KB that older limits give; the newer 1 MB is not everywhere


@dataclass(frozen=True, slots=True)
class Event:
    """One event to be; `key` is an alarm's name in the spool, None for other events."""

    detail_type: DetailType
    detail: str  # JSON, under `MAX_DETAIL_BYTES`
    key: str | None = None

    @property
    def fits(self) -> bool:
        """Tell whether ingest would accept the size."""
        return len(self.detail.encode()) <= MAX_DETAIL_BYTES


def alarm_event(alarm: Alarm) -> Event:
    """Make the event of an alarm; one too large goes without its votes, which stay in the spool.

    The findings, and with them the delivery key, are never cut.
    """
    key = name_of(alarm)
    event = Event(DetailType.ALARM, encode(alarm), key)
    if not event.fits:
        slim = replace(
            alarm, contests=(), pairs=alarm.pairs[:64], nonfinite_ranks=alarm.nonfinite_ranks[:256]
        )
        event = Event(DetailType.ALARM, encode(slim), key)
    return event


def batches(items: Sequence[T], event_of: Callable[[T], Event]) -> list[list[T]]:
    """Split into calls of at most 10 entries and `MAX_CALL_BYTES`, in order."""
    out: list[list[T]] = []
    size = 0
    for item in items:
        length = len(event_of(item).detail.encode())
        if not out or len(out[-1]) == MAX_ENTRIES or size + length > MAX_CALL_BYTES:
            out.append([])
            size = 0
        out[-1].append(item)
        size += length
    return out


def put(client: Any, bus: str, batch: Sequence[Event]) -> tuple[frozenset[int], str]:
    """Send one batch; return which events (indices) the bus refused, to be sent again, and why.

    Raises
    ------
    Exception: whatever boto3 raises when the whole call fails.
    """
    answer = client.put_events(
        Entries=[
            {
                "Source": EVENT_SOURCE,
                "DetailType": e.detail_type.value,
                "Detail": e.detail,
                "EventBusName": bus,
                "Resources": [],
            }
            for e in batch
        ]
    )
    if not answer.get("FailedEntryCount"):
        return frozenset(), ""
    results = answer.get("Entries", [])
    if len(results) != len(batch):
        return frozenset(range(len(batch))), "the bus refused some events without saying which"
    refused = frozenset(i for i, r in enumerate(results) if r.get("ErrorCode"))
    codes = sorted({str(r["ErrorCode"]) for r in results if r.get("ErrorCode")})
    return refused, f"the bus refused {len(refused)} of {len(batch)} events: {', '.join(codes)}"
