"""The quarantine table, read by every agent: who must not compute, and the mode. It holds no approvals."""

from __future__ import annotations

from datetime import datetime

from training_agent.contract import MODE_SUBJECT, Mode, QuarantineState

from ..domain.times import stamp
from .dynamodb import Table

_FREE = "attribute_not_exists(subject) OR #state = :released OR incident_id = :mine"


class QuarantineTable:
    """Implements `ports.Quarantine`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def put_mode(self, mode: Mode) -> None:
        self._table.put({"subject": MODE_SUBJECT, "mode": mode.value})

    def hold(self, subject: str, occurrence: str, incident_id: str, at: datetime) -> None:
        """Held by another open incident already: held is held."""
        self._set(subject, QuarantineState.HELD, "held_at", occurrence, incident_id, at)

    def release(self, subject: str, occurrence: str, incident_id: str, at: datetime) -> bool:
        return self._set(subject, QuarantineState.RELEASED, "released_at", occurrence, incident_id, at)

    def _set(
        self, subject: str, state: QuarantineState, when: str, key: str, incident_id: str, at: datetime
    ) -> bool:
        return self._table.update(
            {"subject": subject},
            f"SET #state = :state, delivery_key = :key, incident_id = :mine, {when} = :at",
            {
                ":state": state.value,
                ":released": QuarantineState.RELEASED.value,
                ":key": key,
                ":mine": incident_id,
                ":at": stamp(at),
            },
            _FREE,
            {"#state": "state"},
        )
