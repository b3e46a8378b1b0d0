"""The quarantine table, read by every agent: who must not compute, and the mode. It holds no approvals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from training_agent.contract import MODE_SUBJECT, Mode, QuarantineState

from ..domain.errors import ConflictError
from ..domain.times import stamp
from .dynamodb import Table

# Ours alone, or nobody's; rows of the version before name one incident in place of a set of holders.
_NOBODY_ELSE = (
    "holders = :me OR (attribute_not_exists(holders) AND "
    "(attribute_not_exists(#state) OR #state = :released OR incident_id = :mine))"
)
_TRIES = 4  # a holder that comes or goes in between


class QuarantineTable:
    """Implements `ports.Quarantine`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def put_mode(self, mode: Mode) -> None:
        self._table.put({"subject": MODE_SUBJECT, "mode": mode.value})

    def hold(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> None:
        """Beside whoever holds it already. Keys are only ever added, as the agent's own entries are."""
        row = self._table.get({"subject": subject}) or {}
        held = row.get("state") == QuarantineState.HELD.value
        before = {row["incident_id"]} if held and "holders" not in row and "incident_id" in row else set()
        self._table.update(
            {"subject": subject},
            "SET #state = :held, delivery_key = :newest, incident_id = :mine, held_at = :at "
            "ADD delivery_keys :keys, holders :holders",
            {
                ":held": QuarantineState.HELD.value,
                ":newest": occurrences[-1],
                ":mine": incident_id,
                ":at": stamp(at),
                ":keys": set(occurrences),
                ":holders": {incident_id} | before,
            },
            names={"#state": "state"},
        )

    def release(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> bool:
        """`delivery_key` is the newest alone: what agents of the version before read."""
        key, me, keys = {"subject": subject}, {incident_id}, set(occurrences)
        for _ in range(_TRIES):
            last = self._table.update(
                key,
                "SET #state = :released, delivery_key = :newest, incident_id = :mine, released_at = :at "
                "ADD delivery_keys :keys REMOVE holders",
                {
                    ":released": QuarantineState.RELEASED.value,
                    ":newest": occurrences[-1],
                    ":mine": incident_id,
                    ":at": stamp(at),
                    ":keys": keys,
                    ":me": me,
                },
                _NOBODY_ELSE,
                {"#state": "state"},
            )
            others = not last and self._table.update(
                key,
                "ADD delivery_keys :keys DELETE holders :me",
                {":keys": keys, ":me": me},
                "attribute_exists(holders) AND holders <> :me",
            )
            if last or others:
                return last
            row = self._table.get(key) or {}
            if "holders" not in row and row.get("incident_id") != incident_id:
                return False  # another incident's, by the version before
        raise ConflictError(f"quarantine row {subject} kept changing")
