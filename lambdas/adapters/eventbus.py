"""Our event bus: "SDC Incident State Changed", so that chat, paging and ticketing can hook in."""

from __future__ import annotations

import json

from training_agent.contract import EVENT_SOURCE, DetailType

from ..domain.errors import PipelineError, UnavailableError
from ..observability import logger
from .aws import client, translated


class EventBus:
    """Implements `ports.Bus`. Others listen; their news being lost never stops an incident."""

    def __init__(self, name: str) -> None:
        self._name = name

    def alarm(self, detail: str) -> None:
        entry = {
            "Source": EVENT_SOURCE,
            "DetailType": DetailType.ALARM.value,
            "Detail": detail,
            "EventBusName": self._name,
        }
        with translated("PutEvents"):
            answer = client("events").put_events(Entries=[entry])
        if answer.get("FailedEntryCount", 0):
            raise UnavailableError(f"PutEvents: {answer['Entries'][0].get('ErrorCode')}")

    def state_changed(self, detail: dict[str, object]) -> None:
        entry = {
            "Source": EVENT_SOURCE,
            "DetailType": DetailType.INCIDENT_STATE_CHANGED.value,
            "Detail": json.dumps(detail),
            "EventBusName": self._name,
        }
        try:
            with translated("PutEvents"):
                answer = client("events").put_events(Entries=[entry])
            if answer.get("FailedEntryCount", 0):
                raise UnavailableError(f"PutEvents: {answer['Entries'][0].get('ErrorCode')}")
        except PipelineError as e:
            logger.warning("state change not published", extra={"reason": str(e)})
