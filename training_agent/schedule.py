"""When to check: global steps in, "due" or not out. Next step: the guard asks before each forward.

Steps are global and 1-based. Every answer is a pure function of the step, so all ranks decide alike.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from .errors import ConfigurationError
from .kernels import Kernels

LAYERS_FIRST = 10  # steps between layer audits under a budget, until one was measured


class ScheduleWarning(UserWarning):
    """The schedule is legal and leaves a gap that its text names."""


class Partner(str, Enum):
    """How replay partners are chosen, see `training_agent.placement.partners`."""

    ROTATE = "rotate"  # from audit to audit, over at most 8 offsets
    FIXED = "fixed"  # always one node's GPU count further


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often each check runs, in global steps.

    By default a checkpoint step is also an audit step (`strict`) and a weight-check step
    (`check_on_checkpoint`), whatever the other two intervals say; the optimizer's state is then compared with
    the weights, and with it master weights and steady buffers (`optimizer_state`).

    With an outcome (`max_poisoned_steps`, `overhead_budget` or both) the audits' interval follows from it,
    see `training_agent.pace`: the budget begins at `audit_every` until an audit was measured, and of both
    the bound on poisoned steps wins.

    Layer audits (`layer_every`, `layer_budget`; off by default) compare one block of a step that has no
    whole audit, the next block each time.

    `kernels="forced"` changes a run's bits (not its meaning): choose it at step 0 and keep it.

    Raises:
        ConfigurationError: an interval is not a positive whole number, or a flag is not a bool.
    """

    audit_every: int | None = 100  # ring replay; None: never
    check_every: int = 10  # weights against each other
    ckpt_every: int | None = 1000  # the loop saves after these steps; None: it saves when it likes
    strict: bool = True
    check_on_checkpoint: bool = True
    partner: Partner = Partner.ROTATE
    optimizer_state: bool = True  # and other state: compared with the weights wherever a save may follow
    kernels: Kernels = Kernels.SWITCHED  # or "forced", "default": see `training_agent.kernels`
    reduction: bool = False  # compare each step's sums of gradients before and after the all-reduce
    max_poisoned_steps: int | None = None  # outcome: no persistent fault is applied more often than this
    overhead_budget: float | None = None  # outcome: audits take this share of the time at most, 0.02 is 2 %
    layer_every: int | None = None  # one block of the step that is computed anyway, in turn; None: never
    layer_budget: float | None = None  # outcome: layer audits take this share of the time at most

    def __post_init__(self) -> None:
        _interval("audit_every", self.audit_every, optional=True)
        _interval("check_every", self.check_every, optional=False)
        _interval("ckpt_every", self.ckpt_every, optional=True)
        _interval("max_poisoned_steps", self.max_poisoned_steps, optional=True)
        _interval("layer_every", self.layer_every, optional=True)
        _budget("overhead_budget", self.overhead_budget)
        _budget("layer_budget", self.layer_budget)
        _flag("strict", self.strict)
        _flag("check_on_checkpoint", self.check_on_checkpoint)
        _flag("optimizer_state", self.optimizer_state)
        _flag("reduction", self.reduction)
        object.__setattr__(self, "partner", _one_of(Partner, "partner", self.partner))
        object.__setattr__(self, "kernels", _one_of(Kernels, "kernels", self.kernels))
        if self.audit_every is None and (self.by_outcome or self.layered):
            raise ConfigurationError(
                "Schedule(audit_every=None) switches audits off, max_poisoned_steps, overhead_budget, "
                "layer_every and layer_budget ask for some: leave audit_every out"
            )
        if self.gaps:
            warnings.warn("Schedule: " + "; ".join(self.gaps), ScheduleWarning, stacklevel=3)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What this schedule leaves unchecked by choice, one clause each."""
        gaps = []
        if self.audit_every is None:
            gaps.append("audit_every=None: finite faults of forward and backward are not caught")
        elif not self.strict:
            gaps.append("strict=False: a checkpoint can hold updates that no audit has passed")
        if self.audit_every is not None and not self.deterministic:
            gaps.append("kernels='default': finite faults of the backward are not caught")
        if not self.check_on_checkpoint:
            gaps.append("check_on_checkpoint=False: a checkpoint can hold weights that differ between ranks")
        if not self.optimizer_state:
            gaps.append("optimizer_state=False: a checkpoint can hold moments that differ between ranks")
        return tuple(gaps)

    @property
    def by_outcome(self) -> bool:
        """Whether the interval of audits follows from an outcome."""
        return self.max_poisoned_steps is not None or self.overhead_budget is not None

    @property
    def layered(self) -> bool:
        """Whether steps without a whole audit have one block audited now and then."""
        return self.layer_every is not None or self.layer_budget is not None

    @property
    def of_layers(self) -> Schedule:
        """The rate of layer audits as a schedule of their own; with a budget it begins at `layer_every`."""
        first = LAYERS_FIRST if self.layer_every is None else self.layer_every
        return Schedule(first, ckpt_every=None, overhead_budget=self.layer_budget)

    @property
    def deterministic(self) -> bool:
        """Whether audits and replays run deterministic kernels."""
        return self.kernels is not Kernels.DEFAULT

    @property
    def forced(self) -> bool:
        """Whether every step does."""
        return self.kernels is Kernels.FORCED

    def deterministic_step(self, audit: bool) -> bool:
        """Whether a step runs them, from its first forward to its update."""
        return self.forced or (audit and self.deterministic)

    def plain(self) -> dict[str, Any]:
        """What a manifest says of it: every field, as JSON knows it."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}

    def audit_due(self, step: int) -> bool:
        """Whether `step` is audited by replay."""
        if self.audit_every is None:
            return False
        return step % self.audit_every == 0 or (self.strict and self.checkpoint_due(step))

    def weights_due(self, step: int) -> bool:
        """Whether the weights are compared after the update of `step`."""
        return step % self.check_every == 0 or (self.check_on_checkpoint and self.checkpoint_due(step))

    def state_due(self, step: int) -> bool:
        """Whether the optimizer's state is compared as well: at weight checks that a save may follow."""
        saves = self.ckpt_every is None or self.checkpoint_due(step)
        return self.optimizer_state and saves and self.weights_due(step)

    def checkpoint_due(self, step: int) -> bool:
        """Whether the loop saves after the update of `step`."""
        return self.ckpt_every is not None and step % self.ckpt_every == 0

    def next_audit(self, step: int) -> int | None:
        """First audit step at or after `step`; None when there are no audits."""
        if self.audit_every is None:
            return None
        at_checkpoint = self.ckpt_every if self.strict else None
        return _next(step, self.audit_every, at_checkpoint)

    def next_weight_check(self, step: int) -> int:
        """First weight-check step at or after `step`."""
        return _next(step, self.check_every, self.ckpt_every if self.check_on_checkpoint else None)


def _next(step: int, *intervals: int | None) -> int:
    return min(-(-step // every) * every for every in intervals if every is not None)


def _interval(name: str, value: object, *, optional: bool) -> None:
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        remedy = "a whole number of steps from 1 on" + (", or None to switch it off" if optional else "")
        raise ConfigurationError(f"Schedule({name}={value!r}) is no interval: give {remedy}")


def _budget(name: str, value: object) -> None:
    if value is None:
        return
    number = not isinstance(value, bool) and isinstance(value, (int, float))
    if not number or not 0 < value < 1:  # type: ignore[operator]
        raise ConfigurationError(
            f"Schedule({name}={value!r}) is no share of the time: give a number between 0 and 1, "
            "0.02 for 2 %, or None"
        )


def _one_of(kinds: type[Enum], name: str, value: object) -> Enum:
    try:
        return kinds(value)
    except ValueError:
        names = ", ".join(repr(k.value) for k in kinds)
        raise ConfigurationError(f"Schedule({name}={value!r}): use one of {names}") from None


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"Schedule({name}={value!r}) is no switch: give True or False")
