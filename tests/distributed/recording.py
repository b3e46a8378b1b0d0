"""A reporter that keeps what the guard tells it."""

from __future__ import annotations

from typing import Any

from training_agent.contract import Alarm, NodeRegistration, encode, to_plain
from training_agent.report import StepChecks


class RecordingReporter:
    """A reporter that keeps what it is told, and has only what `Reporter` asks for."""

    def __init__(self) -> None:
        self.registrations: list[NodeRegistration | None] = []
        self.steps: list[tuple[int, StepChecks]] = []
        self.alarms: list[Alarm] = []
        self.closed = False

    def started(self, registration: NodeRegistration | None) -> None:
        self.registrations.append(registration)

    def progress(self, step: int, checks: StepChecks) -> None:
        self.steps.append((step, checks))

    def alarm(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)

    def close(self) -> None:
        self.closed = True

    def noted(self) -> dict[str, Any]:
        """For the tests, JSON-able."""
        return {
            "registrations": [None if r is None else to_plain(r) for r in self.registrations],
            "steps": [step for step, _ in self.steps],
            "audited": [step for step, checks in self.steps if checks.audited],
            "weight-checked": [step for step, checks in self.steps if checks.weight_checked],
            "alarms": [encode(a) for a in self.alarms],
        }
