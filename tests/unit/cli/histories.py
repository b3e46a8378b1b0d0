"""Events of an execution's history, as Step Functions lists them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

START = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


def entered(second: float, name: str, kind: str = "TaskStateEntered") -> dict[str, Any]:
    at = START + timedelta(seconds=second)
    return {"type": kind, "timestamp": at, "stateEnteredEventDetails": {"name": name}}


def exited(second: float, name: str, story: str = "", kind: str = "TaskStateExited") -> dict[str, Any]:
    details = {"name": name, "output": json.dumps({"outcome": "x", "story": story})}
    return {
        "type": kind,
        "timestamp": START + timedelta(seconds=second),
        "stateExitedEventDetails": details,
    }
