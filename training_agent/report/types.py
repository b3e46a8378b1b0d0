"""What the guard hands to a reporter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..contract import Alarm, NodeRegistration, Place


@dataclass(frozen=True, slots=True)
class StepChecks:
    """Which checks an applied step passed."""

    audited: bool  # check 2 was made at this step
    weight_checked: bool  # check 3 was made at this step
    last_audit_pass: int | None  # step of the last passed audit
    last_weight_check_pass: int | None
    audits_skipped: int = 0  # of this start so far: due, and nothing could be compared (or replays are off)
    seconds: float = 0.0  # of the training thread, inside replays and weight checks since the step before
    layer_audited: bool | None = None  # a layer audit was made at this step; None: they are off
    layer_audits_skipped: int = 0  # of this start so far
    audit_every: int | None = None  # steps, as chosen by now; None: the schedule has a fixed interval


class Reporter(Protocol):
    """Where the guard reports to; implement it to bring a reporter of your own. No method may raise."""

    def started(self, registration: NodeRegistration | None) -> None:
        """Called once, before the first step; local rank 0 hands in its node's registration, others None."""

    def progress(self, step: int, checks: StepChecks) -> None:
        """Called after each applied step; must return at once."""

    def alarm(self, alarm: Alarm) -> None:
        """Return when the alarm is safe on a disk and was sent, or sending was given up for now."""

    def close(self) -> None:
        """Called at the end of training."""


@runtime_checkable
class GroupReporter(Reporter, Protocol):
    """A reporter that goes by which ranks are guarded together, as `JobReporter` does."""

    def among(self, places: Sequence[Place]) -> None:
        """Called once by `attach`: where the ranks run that compare with each other, this one among them."""
