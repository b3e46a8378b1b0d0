"""A model with two kernels for one operator, and faults that live in one of them. Next: `options_worker`.

On a CPU torch's own operators have one kernel each; so this operator asks, as those of a GPU do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed import loops, models
from tests.distributed.cases import Case, fused
from tests.distributed.loops import Loop
from training_agent import Schedule
from training_agent._phase import Phase
from training_agent.determinism import deterministic
from training_agent.schedule import ScheduleWarning

Strike = Callable[[int, Phase], float | None]  # step, phase -> factor
on = torch.are_deterministic_algorithms_enabled


class Summed(torch.autograd.Function):
    """The sum of a row, in one of two orders."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        columns = x.unbind(1) if on() else x.flip(1).unbind(1)
        total = columns[0]
        for column in columns[1:]:
            total = total + column
        ctx.columns = x.shape[1]
        return total[:, None]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return (gradient if on() else gradient * 3 / 3).expand(-1, ctx.columns)


class TwoKernels(models.Net):
    """Both directions have other bits where torch is asked for determinism."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * Summed.apply(x @ self.up.weight.T))


class Late(models.Net):
    """Comes to an operator that has no deterministic kernel in evaluations, and where a loop says so."""

    here = False

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        put = self.here or not self.training
        return y.clone().put_(torch.tensor([3]), torch.ones(1)) if put else y


def evaluate_after(loop: Loop, step: int) -> None:
    """Notes which kernels run where."""
    switched = loop.notes.setdefault("deterministic", {"forward": [], "update": [], "evaluation": []})
    seen = loop.plain.up.register_forward_pre_hook(
        lambda module, _args: switched["forward" if module.training else "evaluation"].append(on())
    )
    (optimizer,) = loop.optimizers
    applied = optimizer.register_step_post_hook(lambda *_: switched["update"].append(on()))
    loops.evaluate_between(loop, step)
    seen.remove()
    applied.remove()


def late_at_5(loop: Loop, step: int) -> None:
    """Step 5 is no audit."""
    loop.plain.here = step == 5  # type: ignore[assignment]
    loops.plain_step(loop, step)


def in_forced_kernels(loop: Loop, step: int) -> None:
    """What a guard with kernels="forced" makes of a step."""
    optimizer = loop.optimizers[0]
    optimizer.zero_grad()
    with deterministic(attention=True):
        loop.loss(loop.model, models.batch_for(loop.rank, step)).backward()
    nn.utils.clip_grad_norm_(loop.plain.parameters(), 1.0)
    optimizer.step()


def only(kernel: bool) -> Strike:
    """A persistent fault of the deterministic kernel (True), or of the other one."""

    def strike(step: int, phase: Phase) -> float | None:
        return 1000.0 if step >= 3 and phase is not Phase.WARM_UP and on() is kernel else None

    return strike


def nan_once(step: int, phase: Phase) -> float | None:
    """Deferred mode raises in the middle of the step after it."""
    return float("nan") if step == 5 and phase is Phase.TRAINING else None


def case(kernels: str, **changes: Any) -> Case:
    """Audits at 2, 4 and 6."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        schedule = Schedule(2, 2, None, kernels=kernels)  # type: ignore[arg-type]
    return replace(Case(TwoKernels, schedule=schedule), **changes)


def runs() -> Iterator[tuple[str, Case, bool, Strike | None]]:
    """Name, case, guarded, fault."""
    for kernels in ("switched", "forced", "default"):
        yield f"{kernels}: clean", case(kernels), True, None
        yield f"{kernels}: other", case(kernels), True, only(kernel=False)
        yield f"{kernels}: deterministic", case(kernels), True, only(kernel=True)
    yield "forced: late", case("forced", build=Late, step=late_at_5), True, None
    yield "switched: late", case("switched", build=Late, step=late_at_5), True, None
    late = case("forced", optimizers=fused, options={"mode": "deferred"})
    yield "forced: deferred", late, True, nan_once
    yield "forced: unguarded", case("forced", step=in_forced_kernels), False, None
    yield "forced: evaluation", case("forced", build=Late, step=evaluate_after), True, None
