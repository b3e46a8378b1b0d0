"""May this effect happen now? Mode, kill switch, budget: pure, asked right before each effect.

In: what was read a moment ago. Out: nothing, or `HaltedError`/a sentence that says why not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from training_agent.contract import Mode

from .errors import HaltedError

_ORDER = (Mode.OBSERVE, Mode.CONTAIN, Mode.REPLACE)


@dataclass(frozen=True, slots=True)
class Control:
    """What the control table says; `mode` None: the deployed one counts."""

    mode: Mode | None
    kill_switch: bool


def effective_mode(deployed: Mode, control: Control) -> Mode:
    """The lower of the two: the table can lower the deployed mode, never raise it."""
    return min((deployed, control.mode or deployed), key=_ORDER.index)


def require(deployed: Mode, control: Control, needed: Mode, effect: str) -> None:
    """Refuse an effect that mode or kill switch forbid.

    Raises:
        HaltedError: nothing may be done; the text says what forbids it.
    """
    if control.kill_switch:
        raise HaltedError(f"the kill switch is on: {effect} was not done")
    mode = effective_mode(deployed, control)
    if _ORDER.index(mode) < _ORDER.index(needed):
        raise HaltedError(f"mode {mode.value} forbids it: {effect} was not done")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of replacements, as deployed."""

    per_day: int
    percent: float  # of the Running nodes of the suspect's group
    per_hour: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """Stops all replacements until a human closes it with a reason; an absent row is a closed one."""

    open: bool
    reason: str = ""


class BudgetAnswer:
    """Constants: what `within_budget` answers."""

    OK = ""
    HOUR = "hour"
    DAY = "day"


def allowed_per_day(budget: Budget, running: int) -> int:
    """min(absolute cap, max(1, floor(percent of Running))); nothing Running allows nothing."""
    if running <= 0:
        return 0
    return min(budget.per_day, max(1, math.floor(budget.percent * running / 100)))


def is_floor(percent: float, running: int) -> bool:
    """Does the percentage round down to nothing, so that only the floor of one allows a replacement?"""
    return running > 0 and math.floor(percent * running / 100) < 1


def within_budget(budget: Budget, running: int, earlier: tuple[datetime, ...], now: datetime) -> str:
    """Say which limit one more replacement would break: "" none, "hour" (wait), "day" (stop)."""
    day = [t for t in earlier if t > now - timedelta(days=1)]
    if len(day) >= allowed_per_day(budget, running):
        return BudgetAnswer.DAY
    hour = [t for t in day if t > now - timedelta(hours=1)]
    return BudgetAnswer.HOUR if len(hour) >= budget.per_hour else BudgetAnswer.OK
