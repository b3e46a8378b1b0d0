"""Keeps the audits' pace: asks it before each step, tells it afterwards what the step was like.

Comes in: steps as they begin and end, counters that were summed over all ranks, this rank's clock. Goes out:
whether a step is audited; one log line per change of the rate. Next: `_update` begins the step.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from . import _bisecting
from ._alarm import Sighting
from ._comm import Comm
from ._gate import Tally
from .log_line import log_line
from .pace import PERMILLE, Pace, Rate, Spikes

_CLOCKED = 32  # ordinary steps behind the median


@dataclass(slots=True)
class Rhythm:
    """Every method is called on all ranks alike, with what is equal on all of them (the clock apart)."""

    comm: Comm
    pace: Pace
    title: str = "audit_rate"  # of its log lines
    _loss: Spikes = field(default_factory=Spikes)
    _norm: Spikes = field(default_factory=Spikes)
    _replayed: frozenset[int] | None = field(default_factory=_bisecting.audits)
    _said: Rate | None = None
    _ended: float | None = None  # when the last step was judged
    _ordinary: deque[float] = field(default_factory=lambda: deque(maxlen=_CLOCKED))

    @property
    def by_outcome(self) -> bool:
        """Whether there is a pace to keep, beside fixed intervals."""
        return self.pace.schedule.by_outcome

    def restart(self, step: int, passed: int | None = None) -> None:
        """Training goes on from another step; `passed`: of the last audit before it."""
        self.pace = Pace(self.pace.schedule, step, self.pace.budget, passed)

    def due(self, step: int) -> bool:
        """Whether `step`, which begins, is audited; under `sdc bisect` as in the job, whatever the pace."""
        if self.by_outcome and self._replayed is not None:
            return step in self._replayed
        if self.by_outcome:
            rate = self.pace.rate(step)
            changed = self._said is None or rate.every != self._said.every
            self._said = rate
            if changed and self.comm.is_first:
                log_line(self.title, step=step, every=rate.every, reason=rate.reason)
        return self.pace.due(step)

    @property
    def every(self) -> int | None:
        """The interval as it is now; None where it is fixed."""
        return None if self._said is None else self._said.every

    def judged(self, step: int, *, audit: bool) -> None:
        """`step` was judged and, with `audit`, replayed or not comparable; a collective of audit steps."""
        if not self.by_outcome:
            return
        now, before = time.perf_counter(), self._ended
        self._ended = now
        if audit:
            self.pace.audited(step)
            if self.pace.schedule.overhead_budget is not None:
                self._clock_audit(None if before is None else now - before)
        elif before is not None:
            self._ordinary.append(now - before)

    def seen(self, step: int, tally: Tally) -> None:
        """The summed numbers of `step` were read."""
        if not self.by_outcome:
            return
        for spikes, value, what in (
            (self._loss, tally.loss, "loss"),
            (self._norm, tally.norm, "gradient norm"),
        ):
            if value > 0 and spikes.is_one(value):
                self.pace.suspect(step, f"a spike of the {what} at step {step}")

    def let_pass(self, sighting: Sighting) -> None:
        """A check fired, and the policy goes on."""
        self.pace.suspect(sighting.step, f"check {sighting.check.value} fired at step {sighting.step}")

    def _clock_audit(self, seconds: float | None) -> None:
        mine = 0
        if seconds is not None and self._ordinary:
            usual = median(self._ordinary)
            mine = int(PERMILLE * max(0.0, seconds - usual) / usual)
        (slowest,) = self.comm.largest([mine])
        if slowest:
            self.pace.measured(slowest)
