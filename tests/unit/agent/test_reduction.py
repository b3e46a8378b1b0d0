"""What the checksum of the reduction measures and claims, in one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from training_agent import _alarm_text, _reduction
from training_agent._alarm import Passes, suspect_window
from training_agent._reduction import LEAST, MARGIN, ReductionCheck
from training_agent.checks.nonfinite import GradientNorms
from training_agent.checks.reduction import ReductionSums, deviations, largest_rounding, smallest
from training_agent.contract import Check, FindingKind

WORLD = 3
EPS = torch.finfo(torch.float32).eps


class Sums:
    """Plays the sums of one step: a mean that is off by `error` roundings of the norm."""

    def __init__(self) -> None:
        self.roundings = torch.full((2,), EPS, dtype=torch.float64)
        self.floors = torch.zeros(2, dtype=torch.float64)
        self.hooks: list[Any] = []
        self.error: float | None = 1.0

    def reset(self) -> None:
        pass

    @property
    def before(self) -> Tensor | None:
        return None if self.error is None else torch.tensor([[5.0, 7.0], [16.0, 4.0]], dtype=torch.float64)

    @property
    def after(self) -> Tensor | None:
        if self.error is None:
            return None
        return torch.tensor([5.0 + self.error * EPS * 4.0, 7.0], dtype=torch.float64)


def check(sums: Sums, said: list[str] | None = None) -> ReductionCheck:
    comm: Any = SimpleNamespace(world=1, gather=lambda value: [value], sum_tensor=lambda t: t)
    say = (said if said is not None else []).append
    given: Any = sums
    return ReductionCheck(given, ("a", "b"), (100, 1), comm, say)


def measured(sums: Sums, said: list[str] | None = None) -> ReductionCheck:
    made = check(sums, said)
    for _ in range(_reduction.CALIBRATION):
        assert not made.flag()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("elements", [1, 7, 4096])
def test_no_order_of_additions_exceeds_the_bound_of_the_first_steps(
    dtype: torch.dtype, elements: int
) -> None:
    generator = torch.Generator().manual_seed(elements)
    for spread in (0.0, 3.0):
        own = torch.randn(WORLD, elements, generator=generator) * 10 ** (
            spread * torch.randn(WORLD, elements, generator=generator)
        )
        own = own.to(dtype)
        reduced = own[0] / WORLD
        for other in own[1:]:
            reduced = reduced + other / WORLD
        total = torch.stack([own.double().sum(), own.double().square().sum()]).unsqueeze(1)
        rounding = torch.tensor([torch.finfo(dtype).eps]).double()
        found = deviations(total, reduced.double().sum().unsqueeze(0), rounding, torch.zeros(1), WORLD)
        assert float(found) <= largest_rounding(elements, WORLD)


def test_the_limit_is_the_jobs_own_noise_times_the_margin_and_never_less_than_the_least() -> None:
    sums = Sums()
    said: list[str] = []
    made = measured(sums, said)
    assert made.limit == pytest.approx(MARGIN, rel=1e-6)
    assert said == [
        "the checksum of the reduction sees a single wrong element only if it is larger than "
        f"{MARGIN * EPS:.1e} of its gradient's norm"
    ]
    quiet = Sums()
    quiet.error = 0.0
    assert measured(quiet).limit == LEAST


def test_above_the_limit_it_alarms_in_its_own_class_names_nobody_and_blames_that_step_alone() -> None:
    sums = Sums()
    made = measured(sums)
    sums.error = MARGIN - 0.1
    assert not made.flag()
    sums.error = MARGIN + 0.1
    assert made.flag()
    sighting = made.sighting(30)
    (finding,) = sighting.findings
    assert (sighting.check, finding.kind, finding.rank) == (Check.REDUCTION, FindingKind.REDUCED, None)
    assert "the sum of the reduced gradient of a is 8.1 roundings" in finding.evidence
    assert suspect_window(sighting, Passes(audit=20, weights=20)) == (30, 30)
    assert _alarm_text._HEADLINE[Check.REDUCTION]


def test_while_it_measures_only_what_no_rounding_explains_alarms() -> None:
    sums = Sums()
    made = check(sums)
    sums.error = largest_rounding(100, 1) - 1
    assert not made.flag()
    sums.error = largest_rounding(100, 1) + 1
    assert made.flag()
    sums.hooks = [("bf16_compress", None)]  # rounds by itself: nothing is known of it yet
    assert not made.flag()


def test_another_hook_begins_the_measurement_anew_and_a_changing_one_ends_it() -> None:
    sums = Sums()
    said: list[str] = []
    made = measured(sums, said)
    sums.hooks = [("another", None)]
    sums.error = 1000.0
    assert not made.flag() and made.limit is None

    def powerSGD_hook() -> None:  # noqa: N802 - torch's name
        """Plain for a thousand steps, compressing after them."""

    sums.hooks = [(powerSGD_hook, None)]
    assert not made.flag() and made.off is not None
    assert "powerSGD_hook does not reduce every step alike" in said[-1]


def test_noise_that_hides_every_plausible_error_switches_it_off() -> None:
    sums = Sums()
    sums.hooks = [("noise", None)]
    sums.error = 1.0 / EPS
    said: list[str] = []
    made = measured(sums, said)
    assert made.off is not None and not made.flag()
    assert "its own noise is" in said[0]


def test_a_step_without_a_reduction_or_with_a_non_finite_gradient_is_left_to_check_1() -> None:
    sums = Sums()
    made = measured(sums)
    for error in (None, float("nan"), float("inf")):
        sums.error = error
        assert bool(made.flag()) is (error == float("inf"))


class Reduced(Sums):
    """Plays what a healthy mean over `WORLD` ranks rounds, element by element; `wire`: the hook's type."""

    def __init__(self, dtype: torch.dtype, wire: torch.dtype | None) -> None:
        super().__init__()
        self.dtype, self.wire = dtype, wire
        self.hooks = [] if wire is None else [("compress", None)]
        sizes = (1000, 1)
        self.roundings = torch.full((2,), torch.finfo(dtype).eps, dtype=torch.float64)
        floor = max(smallest(dtype), smallest(torch.float16) if wire else 0.0)
        self.floors = floor * torch.tensor(sizes, dtype=torch.float64).sqrt()
        self.generator = torch.Generator().manual_seed(3)
        self.sizes, self.wrong = sizes, 0.0
        self.step(1e-3)

    def step(self, scale: float, tail: float = 0.0) -> None:
        """Gradients of about this size; `tail`: decades over which their elements spread."""
        totals, afters = [], []
        for size in self.sizes:
            shape = (WORLD, size)
            own = torch.randn(shape, generator=self.generator) * scale
            own = (own * 10 ** (tail * torch.randn(shape, generator=self.generator))).to(self.dtype)
            sent = own if self.wire is None else own.to(self.wire)
            reduced = sent[0] / WORLD
            for other in sent[1:]:
                reduced = reduced + other / WORLD
            reduced = reduced.to(self.dtype)
            wide = own.double()
            totals.append(torch.stack([wide.sum(), wide.square().sum()]))
            norm = float((wide.square().sum() / WORLD).sqrt())
            afters.append(reduced.double().sum() + self.wrong * norm)
        self._before, self._after = torch.stack(totals, dim=1), torch.stack(afters)

    @property
    def before(self) -> Tensor | None:
        return self._before

    @property
    def after(self) -> Tensor | None:
        return self._after


WARM_UP = [10 ** (-3 + 2 * step / 100) for step in range(100)]  # grows a hundredfold
SPIKES = [1e-3 * (1000 if step % 10 == 0 else 1) for step in range(100)]
DECAY = [10 ** (-3 - 0.4 * step) for step in range(110)]  # down to nothing, through the subnormal numbers
KINDS = {
    "fp32": (torch.float32, None),
    "bf16": (torch.bfloat16, None),
    "fp16": (torch.float16, None),
    "fp32, bf16 hook": (torch.float32, torch.bfloat16),
    "fp32, fp16 hook": (torch.float32, torch.float16),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [WARM_UP, SPIKES, DECAY], ids=["warm-up", "loss spikes", "decay"])
def test_gradients_that_grow_spike_or_vanish_long_after_the_measurement_do_not_alarm(
    kind: str, path: list[float]
) -> None:
    """Three ranks in one process: what they sum and reduce is computed, only the group is played."""
    sums = Reduced(*KINDS[kind])
    made = check_of(sums)
    for _ in range(_reduction.CALIBRATION):
        sums.step(1e-3)
        assert not made.flag()
    assert made.limit is not None and made.off is None
    for scale in path:
        for tail in (0.0, 0.5) if "fp16" in kind else (0.0, 0.5, 2.0):  # beyond 65,504 it is check 1's
            sums.step(scale, tail)
            assert not made.flag(), f"gradients of about {scale:.0e}"
    sums.wrong = 4 * made.limit * float(sums.roundings[0])
    sums.step(1e-3)
    assert made.flag(), "and what it is for is seen all the same"


def check_of(sums: Sums) -> ReductionCheck:
    comm: Any = SimpleNamespace(world=WORLD, gather=lambda value: [value], sum_tensor=lambda t: t)
    given: Any = sums
    return ReductionCheck(given, ("a", "b"), (1000, 1), comm, lambda _: None)


def test_the_floor_is_that_of_the_type_and_of_float16_once_a_hook_may_send_that() -> None:
    ddp: Any = torch.nn.Linear(100, 1, bias=False).to(torch.bfloat16)
    parameters = tuple(ddp.parameters())
    sums = ReductionSums(ddp, parameters, GradientNorms(parameters, lambda: True))
    assert float(sums.floors) == pytest.approx(10 * smallest(torch.bfloat16), abs=0)
    assert float(sums.floors) < 1e-33
    ddp._comm_hooks = [("compress", None)]
    assert float(sums.floors) == pytest.approx(10 * torch.finfo(torch.float16).smallest_normal)


def test_of_several_backwards_that_all_reduce_the_last_one_is_judged() -> None:
    """Accumulation without `no_sync`; in one process what comes out of a reduction is what went in."""
    ddp: Any = torch.nn.Linear(4, 1, bias=False)
    ddp.require_backward_grad_sync = True
    sums = ReductionSums(ddp, tuple(ddp.parameters()), GradientNorms(tuple(ddp.parameters()), lambda: True))
    for step in range(3):
        ddp.weight.grad = None
        for micro_batch in range(3):
            ddp(torch.full((1, 4), float(10 * step + micro_batch + 1))).sum().backward()
        assert sums.before is not None and sums.after is not None
        assert float(sums.before[0]) == float(sums.after) == float(ddp.weight.grad.sum())
        sums.reset()


def test_steps_without_a_gradient_measure_nothing() -> None:
    """All zero, as behind a head that begins at zero, or overflowing until a GradScaler has its scale."""
    sums = Reduced(torch.float32, None)
    made = check_of(sums)
    for scale in (0.0, float("inf")) * _reduction.CALIBRATION:
        sums.step(scale)
        assert not made.flag()
    assert made.limit is None
    for _ in range(_reduction.CALIBRATION):
        sums.step(1e-3)
        assert not made.flag()
    assert made.limit is not None and made.limit > LEAST
