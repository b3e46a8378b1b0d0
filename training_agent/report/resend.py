"""Sends the alarms that an earlier start could not, while the job is on hold.

In: the spool. Out: events on the bus, marks in the spool. A held job whose alarm never left would wait for a
pipeline that knows nothing; so rank 0 tries again and again. Called by `training_agent.hold`.
"""

from __future__ import annotations

from typing import Any

from ..clients import ClientFactory
from ..settings import AgentSettings
from ..spool import Spool, spool_of
from .event_bus import alarm_event, batches, put


class Resender:
    """Rank 0's second and later tries."""

    def __init__(self, settings: AgentSettings, client: ClientFactory) -> None:
        self._bus = settings.event_bus
        self._make_client = client
        self._client: Any = None
        self._spool: Spool = spool_of(settings)

    def try_once(self) -> str | None:
        """Send what has no mark; return why not all of it went, or None. No boto3 when there is nothing."""
        if self._bus is None:
            return None
        try:
            waiting = [e for e in map(alarm_event, self._spool.unsent()) if e.fits]
            if not waiting:
                return None
            if self._client is None:
                self._client = self._make_client("events")
            why = ""
            for batch in batches(waiting, lambda event: event):
                refused, reason = put(self._client, self._bus, batch)
                why = why or reason
                for index, event in enumerate(batch):
                    if index not in refused and event.key is not None:
                        self._spool.mark_sent(event.key)
        except Exception as e:  # noqa: BLE001 - a network fault must not end the hold
            return f"{type(e).__name__}: {e}"
        return why or None
