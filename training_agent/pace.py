"""How often to audit where the user asks for an outcome instead of an interval. Pure.

Comes in: what all ranks know alike: steps, audits made, measured cost, trouble, loss and norm. Goes out:
whether a step is audited, the interval and its reason. Next: `_rhythm` asks before each forward.

All of it must be equal on all ranks: a rank that audits alone waits for the others for ever.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from statistics import median

from .schedule import Schedule

WATCHFUL_EVERY = 10  # steps, after a start and on suspicion; published: for burn-in and suspects
WATCHFUL_STEPS = 100
REMEMBERED = 64  # healthy steps behind a spike's median
LEAST = 16  # of them before anything is a spike
SPIKE = 4.0  # times the median
PERMILLE = 1000
NEVER = 1e9  # steps: what a budget next to nothing allows


@dataclass(frozen=True, slots=True)
class Rate:
    """An audit every so many steps, and why."""

    every: int
    reason: str


@dataclass(slots=True)
class Pace:
    """When the next audit is due; `step` is the last one applied before this start."""

    schedule: Schedule
    step: int = 0
    budget: str = "overhead_budget"  # its name in reasons
    passed: int | None = None  # step of the last audit before this start that passed; None: not known
    _last: int = field(init=False)  # audit, or the start
    _watchful_until: int = field(init=False)
    _why: str = "a start"
    _costs: deque[int] = field(default_factory=lambda: deque(maxlen=5))  # of audits: permille of a step
    _ordered: bool = False

    def __post_init__(self) -> None:
        self._last = self.step
        if self.passed is not None and self.schedule.max_poisoned_steps is not None:
            self._last = self.passed  # what this start begins with was not audited since
        self._watchful_until = self.step + WATCHFUL_STEPS

    def due(self, step: int) -> bool:
        """Whether `step` is audited; the same answer until `audited` or `suspect` is called."""
        if not self.schedule.by_outcome:
            return self.schedule.audit_due(step)
        if self.schedule.strict and self.schedule.checkpoint_due(step):
            return True
        return self._ordered or step - self._last >= self.rate(step).every

    def rate(self, step: int) -> Rate:
        """The interval at `step`."""
        calm = self._calm()
        if step <= self._watchful_until and calm.every > WATCHFUL_EVERY:
            return Rate(WATCHFUL_EVERY, f"watchful for {WATCHFUL_STEPS} steps after {self._why}")
        return calm

    def audited(self, step: int) -> None:
        """The audit of `step` was made, or could not be made; what needs no audit is not counted here."""
        self._last, self._ordered = step, False

    def measured(self, permille: int) -> None:
        """What the last audit took beside a step without one, on the slowest rank."""
        self._costs.append(max(1, permille))

    def suspect(self, step: int, why: str) -> None:
        """Something at `step` that is no proof: an audit follows at once, and for a while more do."""
        self._watchful_until, self._why = step + WATCHFUL_STEPS, why
        self._ordered = (
            step + 1 - self._last >= WATCHFUL_EVERY
        )  # what goes on and on is audited no more often

    def _calm(self) -> Rate:
        schedule = self.schedule
        by_steps = by_cost = None
        if schedule.max_poisoned_steps is not None:
            steps = schedule.max_poisoned_steps
            by_steps = Rate(steps + 1, f"max_poisoned_steps={steps}")
        if schedule.overhead_budget is not None:
            by_cost = self._affordable(schedule.overhead_budget)
        if by_steps is None or by_cost is None:
            return by_steps or by_cost or Rate(schedule.audit_every or 1, "audit_every")
        if by_cost.every > by_steps.every:
            reason = f"{by_steps.reason}, although {by_cost.reason}, allows only every {by_cost.every}"
            return Rate(by_steps.every, reason)
        return by_cost

    def _affordable(self, budget: float) -> Rate:
        name = f"{self.budget}={budget:g}"
        if not self._costs:
            return Rate(self.schedule.audit_every or 1, f"{name}, until the first audit was measured")
        cost = median(self._costs) / PERMILLE  # a save or an evaluation may have come between
        return Rate(_rounded(min(cost / budget, NEVER)), f"{name}, an audit costs {cost:.2f} steps")


def _rounded(steps: float) -> int:
    """Up to two digits, so that the rate does not follow each measurement."""
    grid = int(10 ** max(0, len(str(int(steps))) - 2))
    return max(1, ceil(steps / grid) * grid)


@dataclass(slots=True)
class Spikes:
    """Whether a positive number leaves what it was lately; of all-reduced numbers, never of one rank's."""

    _known: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def is_one(self, value: float) -> bool:
        """Judge one step's number, and remember it: a level that stays is no spike for long."""
        enough = len(self._known) >= LEAST
        spike = enough and value > SPIKE * median(self._known)
        self._known.append(value)
        return spike
