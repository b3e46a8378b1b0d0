"""The control table: mode, kill switch, locks, replacements so far. Absent rows: the deployed default.

Rows: `mode` {value}, `kill_switch` {value: true|false}, `lock#<name>` {holder}, `breaker` {state, reason},
`replacements#<instance group>` {entries, version}.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from training_agent.contract import Mode

from ..domain.errors import ConflictError, HaltedError
from ..domain.policy import Breaker, Control
from ..domain.times import moment, stamp
from .dynamodb import Item, Table

KEPT = timedelta(days=1)  # of the list of replacements: no limit looks further back
BREAKER = "breaker"
CONFLICTS = 4


class ControlTable:
    """Implements `ports.Controls`."""

    def __init__(self, name: str) -> None:
        self._table = Table(name)

    def read(self) -> Control:
        """Strongly consistent. A value that cannot be understood stops everything."""
        mode = self._table.get({"key": "mode"})
        switch = self._table.get({"key": "kill_switch"})
        on = switch["value"] if switch is not None and "value" in switch else switch is not None
        try:
            lowered = Mode(mode["value"]) if mode is not None else None
        except (KeyError, ValueError):
            raise HaltedError("the control table's mode cannot be read: nothing is done") from None
        return Control(lowered, kill_switch=on is not False)

    def lock(self, name: str, holder: str) -> bool:
        return self._table.put(
            {"key": f"lock#{name}", "holder": holder},
            "attribute_not_exists(#key) OR holder = :holder",
            {":holder": holder},
            {"#key": "key"},
        )

    def unlock(self, name: str, holder: str) -> None:
        self._table.delete({"key": f"lock#{name}"}, "holder = :holder", {":holder": holder})

    def replacements(self, group: str) -> dict[str, datetime]:
        return _moments(self._table.get(_replacements(group)))

    def count_replacement(self, group: str, incident_id: str, at: datetime) -> None:
        """Add one and drop what no limit looks at any more; conditional on what was read."""
        for _ in range(CONFLICTS):
            item = self._table.get(_replacements(group)) or {}
            kept = {i: t for i, t in _moments(item).items() if t > at - KEPT} | {incident_id: at}
            entries = [{"incident_id": i, "at": stamp(t)} for i, t in kept.items()]
            version = int(item.get("version", 0))
            if self._table.put(
                {**_replacements(group), "entries": entries, "version": version + 1},
                "attribute_not_exists(#key) OR version = :read",
                {":read": version},
                {"#key": "key"},
            ):
                return
        raise ConflictError(f"the replacements of {group} kept changing")

    def breaker(self) -> Breaker:
        """Absent: closed. Whatever is not clearly closed is open."""
        item = self._table.get({"key": BREAKER})
        if item is None or item.get("state") == "closed":
            return Breaker(open=False)
        return Breaker(open=True, reason=str(item.get("reason", "")))

    def open_breaker(self, reason: str, incident_id: str, at: datetime) -> None:
        row = {"key": BREAKER, "state": "open", "reason": reason, "incident_id": incident_id}
        self._table.put(
            {**row, "opened_at": stamp(at)},
            "attribute_not_exists(#key) OR #state = :closed",
            {":closed": "closed"},
            {"#key": "key", "#state": "state"},
        )

    def close_breaker(self, reason: str, by: str, at: datetime) -> bool:
        return self._table.update(
            {"key": BREAKER},
            "SET #state = :closed, closed_reason = :reason, closed_by = :by, closed_at = :at",
            {":closed": "closed", ":reason": reason, ":by": by, ":at": stamp(at)},
            "attribute_exists(#key) AND #state <> :closed",
            {"#key": "key", "#state": "state"},
        )


def _replacements(group: str) -> Item:
    return {"key": f"replacements#{group}"}


def _moments(item: Item | None) -> dict[str, datetime]:
    return {e["incident_id"]: moment(e["at"]) for e in item.get("entries", ())} if item else {}
