"""The quarantine table, read by every agent: who must not compute, and the mode. It holds no approvals."""

from __future__ import annotations

from collections.abc import Sequence
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

    def hold(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> None:
        """Held by another open incident already: held is held."""
        self._set(subject, QuarantineState.HELD, "held_at", occurrences, incident_id, at)

    def release(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> bool:
        return self._set(subject, QuarantineState.RELEASED, "released_at", occurrences, incident_id, at)

    def _set(
        self,
        subject: str,
        state: QuarantineState,
        when: str,
        keys: Sequence[str],
        incident_id: str,
        at: datetime,
    ) -> bool:
        """`delivery_key` is the newest alone: what agents of the version before read."""
        return self._table.update(
            {"subject": subject},
            "SET #state = :state, delivery_key = :newest, delivery_keys = :keys, incident_id = :mine, "
            f"{when} = :at",
            {
                ":state": state.value,
                ":released": QuarantineState.RELEASED.value,
                ":newest": keys[-1],
                ":keys": set(keys),
                ":mine": incident_id,
                ":at": stamp(at),
            },
            _FREE,
            {"#state": "state"},
        )
