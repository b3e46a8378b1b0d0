"""An execution's history as the story of its incident: one line per step, with how long it took. Pure.

In: events of `states:GetExecutionHistory`. Out: `Chapter`s. Waits and choices between two visits of one step
belong to that step, so that forty polls of a deep health check are one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

NOT_STEPS = ("after ", "wait ")  # choices and waits, as the state machine names them
_ENDS = {
    "ExecutionFailed": "executionFailedEventDetails",
    "ExecutionTimedOut": "executionTimedOutEventDetails",
    "ExecutionAborted": "executionAbortedEventDetails",
}


@dataclass(frozen=True, slots=True)
class Chapter:
    """One step of the story."""

    step: str
    began: datetime
    ended: datetime | None  # None: it runs
    visits: int = 1
    text: str = ""  # the step's own sentence, or why it failed

    def seconds(self, now: datetime) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, ((self.ended or now) - self.began).total_seconds())


def tell(events: Iterable[Mapping[str, Any]]) -> tuple[Chapter, ...]:
    """The chapters in order; a step that was come back to later has a chapter of its own."""
    chapters: list[Chapter] = []
    for event in events:
        kind, at = str(event["type"]), event["timestamp"]
        if kind.endswith("StateEntered"):
            _enter(chapters, str(event["stateEnteredEventDetails"]["name"]), at)
        elif kind.endswith("StateExited"):
            details = event["stateExitedEventDetails"]
            if chapters and chapters[-1].step == details["name"]:
                text = _sentence(details.get("output")) or chapters[-1].text
                chapters[-1] = replace(chapters[-1], ended=at, text=text)
        elif kind in _ENDS:
            details = event.get(_ENDS[kind]) or {}
            text = f"{kind}: {details.get('error', '')} {details.get('cause', '')}".strip()
            chapters.append(Chapter("(execution)", at, at, text=text[:300]))
    return tuple(chapters)


def _enter(chapters: list[Chapter], name: str, at: datetime) -> None:
    if name.startswith(NOT_STEPS):
        return
    if chapters and chapters[-1].step == name:
        chapters[-1] = replace(chapters[-1], ended=None, visits=chapters[-1].visits + 1)
        return
    if chapters and chapters[-1].ended is None:  # it failed: a step that is caught has no exit
        chapters[-1] = replace(chapters[-1], ended=at, text=chapters[-1].text or "did not end by itself")
    chapters.append(Chapter(name, at, None))


def _sentence(output: str | None) -> str:
    try:
        content = json.loads(output or "")
    except ValueError:
        return ""
    if isinstance(content, dict) and isinstance(content.get("Payload"), dict):
        content = content["Payload"]
    if not isinstance(content, dict):
        return ""
    text = content.get("story") or content.get("outcome") or ""
    return str(text).replace("\n", " ")
