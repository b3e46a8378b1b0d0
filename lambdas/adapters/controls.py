"""The control table: mode, kill switch, locks, replacements so far. Absent rows: the deployed default.

Rows: `mode` {value}, `kill_switch` {value: true|false}, `lock#<name>` {holder}, `replacements` {entries}.
"""

from __future__ import annotations

from datetime import datetime

from training_agent.contract import Mode

from ..domain.errors import HaltedError
from ..domain.policy import Control
from ..domain.times import moment, stamp
from .dynamodb import Table


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

    def replacements(self) -> dict[str, datetime]:
        item = self._table.get({"key": "replacements"})
        return {e["incident_id"]: moment(e["at"]) for e in item["entries"]} if item else {}

    def count_replacement(self, incident_id: str, at: datetime) -> None:
        self._table.update(
            {"key": "replacements"},
            "SET entries = list_append(if_not_exists(entries, :none), :one)",
            {":none": [], ":one": [{"at": stamp(at), "incident_id": incident_id}]},
        )
