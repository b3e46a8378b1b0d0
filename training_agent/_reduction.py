"""Judges the reduction of each step by its checksum; the tolerance is this job's own noise, measured first.

Comes in: sums from `checks.reduction`. Goes out: one flag for the gate's counters, and on an alarm a
`Sighting` that names nobody. Next: `_update` drops the step.

The first `CALIBRATION` steps that have gradients measure: only what no rounding could explain alarms there,
and nothing where a communication hook may round by itself. Then `MARGIN` times the largest deviation of any
gradient is the limit. An error that is there from the first step on is measured with the noise, unless it
is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ._alarm import Sighting
from ._comm import Comm
from ._startup import Setup
from .checks.nonfinite import GradientNorms
from .checks.reduction import ReductionSums, deviations, largest_rounding
from .contract import Check, Finding, FindingKind

CALIBRATION = 50  # steps whose gradients are finite and not all zero
MARGIN = 8.0
LEAST = 4.0  # roundings; quiet calibrations must not make it jumpy
USELESS = 0.25  # of a gradient's norm: a limit above it sees no plausible error
_UNTOLD = -1.0  # noise of a step that has no gradient to round
_CHANGING = {"powerSGD_hook", "batched_powerSGD_hook"}  # plain at first, compressing from some step on


@dataclass(slots=True)
class ReductionCheck:
    """One job's; every method is called on all ranks alike."""

    sums: ReductionSums
    names: tuple[str, ...]
    elements: tuple[int, ...]
    comm: Comm
    say: Callable[[str], None]  # keeps a sentence for alarm and manifest
    limit: float | None = None  # in roundings of the norm; None: still measuring
    off: str | None = None  # why it looks no more
    _hooks: tuple[Any, ...] = ()  # the communication hooks that the limit is for
    _noise: list[Tensor] = field(default_factory=list)
    _largest: Tensor | None = None  # what rounding explains with these hooks, per parameter
    _found: Tensor | None = None  # deviations of the step that was flagged last

    def flag(self) -> Tensor:
        """int64 scalar, on the device: 1 when this rank's sums say that the reduction was wrong."""
        before, after = self.sums.before, self.sums.after
        self.sums.reset()
        none = torch.zeros((), dtype=torch.int64, device=self.sums.roundings.device)
        if self.off is not None:
            return none
        if before is None or after is None:
            before = self.sums.roundings.new_full((2, len(self.names)), torch.nan)
            after = before[0]
        total = self.comm.sum_tensor(before).to(none.device)
        self._found = deviations(total, after, self.sums.roundings, self.sums.floors, self.comm.world)
        if self._changed() or self.limit is None:
            self._measure(self._found, total[1])
            return (self._found > self._bounds()).any().to(torch.int64)
        return (self._found > self.limit).any().to(torch.int64)

    def sighting(self, step: int) -> Sighting:
        """What the alarm says, equal on all ranks; a collective."""
        assert self._found is not None
        mine = torch.nan_to_num(self._found)
        worst = int(mine.argmax())
        times, worst = max(self.comm.gather((float(mine[worst]), worst)))
        limit = float(self._bounds()[worst]) if self.limit is None else self.limit
        text = (
            f"the sum of the reduced gradient of {self.names[worst]} is {times:.3g} roundings of its norm "
            f"away from the mean of the ranks' own sums (limit {limit:.3g}): it went wrong inside the "
            "all-reduce, or between a gradient and its bucket"
        )
        return Sighting(Check.REDUCTION, step, (Finding(FindingKind.REDUCED, evidence=text),))

    def _bounds(self) -> Tensor:
        """What no rounding explains, per parameter, while nothing is known of this job."""
        if self._largest is None:  # made once: to put it onto a GPU, the host waits
            kind, world = self.sums.roundings, self.comm.world
            bounds = [torch.inf if self._hooks else largest_rounding(n, world) for n in self.elements]
            self._largest = torch.tensor(bounds, dtype=kind.dtype, device=kind.device)
        return self._largest

    def _changed(self) -> bool:
        """Whether the user's reduction is another one than before; then the measuring begins anew."""
        hooks = tuple(hook for hook, _ in self.sums.hooks)
        if hooks == self._hooks:
            return False
        self._hooks, self.limit, self._noise, self._largest = hooks, None, [], None
        if names := _CHANGING & {getattr(hook, "__name__", "") for hook in hooks}:
            self._switch_off(f"{min(names)} does not reduce every step alike")
        return True

    def _switch_off(self, why: str) -> None:
        self.off = why
        self.say(f"the checksum of the reduction is off: {why}")

    def _measure(self, found: Tensor, squares: Tensor) -> None:
        """Remember one step's noise; a step without a gradient that is finite and not zero has none."""
        told = (squares.isfinite() & (squares > 0)).any()
        noise = torch.where(found.isfinite(), found, 0.0).max()
        self._noise.append(torch.where(told, noise, _UNTOLD))
        if len(self._noise) < CALIBRATION:
            return
        steps = zip(*self.comm.gather(torch.stack(self._noise).tolist()), strict=True)
        known = [max(step) for step in steps if min(step) > _UNTOLD]
        if len(known) < CALIBRATION:  # gradients may be zero, or overflow, for a while
            self._noise = [noise.new_tensor(step) for step in known]
            return
        largest, self._noise = max(known), []
        self.limit = max(LEAST, MARGIN * largest)
        sensitivity = self.limit * float(self.sums.roundings.max())
        if sensitivity > USELESS:
            self._switch_off(
                f"its own noise is {largest:.3g} roundings, so only errors above {sensitivity:.2g} of a norm "
                "would be seen (a communication hook that compresses?)"
            )
        else:
            text = "the checksum of the reduction sees a single wrong element only if it is larger than"
            self.say(f"{text} {sensitivity:.1e} of its gradient's norm")


def reduction_check(setup: Setup, norms: GradientNorms, say: Callable[[str], None]) -> ReductionCheck | None:
    """The job's, if its schedule asks for one."""
    if not setup.schedule.reduction:
        return None
    if setup.weights_off is not None:
        say(f"the checksum of the reduction is off: {setup.weights_off}")
        return None
    if not isinstance(setup.outer, DistributedDataParallel):
        say("the checksum of the reduction is off: it knows DDP's all-reduce, not how shards are reduced")
        return None
    parameters = tuple(setup.parameters.values())
    sums = ReductionSums(setup.outer, parameters, norms)
    return ReductionCheck(
        sums, tuple(setup.parameters), tuple(p.numel() for p in parameters), setup.comm, say
    )
