"""Audits by outcome in a real group, on a clock that the loop moves. Next: `options_worker`.

The published numbers of watchful steps would take 100 steps a run: `short` makes them small.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.distributed import models
from tests.distributed.cases import Case, adamw, fused
from tests.distributed.loops import Loop
from tests.distributed.recording import RecordingReporter
from training_agent import Schedule, _rhythm, pace
from training_agent.schedule import ScheduleWarning

WATCHFUL_EVERY, WATCHFUL_STEPS = 3, 12
STEP_S, AUDIT_S, SLOWEST_AUDIT_S = 1.0, 2.7, 5.4
SLOW, SPIKING = 2, 1  # ranks
SPIKE_AT = 20
STEPS = 34


@dataclass
class Clock:
    """What `_rhythm` reads as the time."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@contextmanager
def short(clock: Clock) -> Iterator[None]:
    """Few watchful steps, and the loop's own clock."""
    few = mock.patch.multiple(pace, WATCHFUL_EVERY=WATCHFUL_EVERY, WATCHFUL_STEPS=WATCHFUL_STEPS)
    with few, mock.patch.object(_rhythm, "time", clock):
        yield


def loss_of(model: nn.Module, batch: models.Batch) -> Tensor:
    """A loss that a batch may raise alone, or whose gradient it may stretch alone."""
    loss = models.loss_of(model, batch)
    stretched = loss * batch["stretch"]
    return stretched - stretched.detach() + loss.detach() + batch["raised"]


def step_on(clock: Clock, raised: float, stretch: float) -> Any:
    """A step of one second; audited ones take longer, on one rank longest."""

    def step(loop: Loop, number: int) -> None:
        odd = loop.rank == SPIKING and number == SPIKE_AT
        own = {
            "raised": torch.tensor(raised if odd else 0.0),
            "stretch": torch.tensor(stretch if odd else 1.0),
        }
        (optimizer,) = loop.optimizers
        optimizer.zero_grad()
        loss = loop.loss(loop.model, models.batch_for(loop.rank, number) | own)
        audited = torch.are_deterministic_algorithms_enabled()
        clock.now += STEP_S + audited * (SLOWEST_AUDIT_S if loop.rank == SLOW else AUDIT_S)
        loss.backward()
        optimizer.step()

    return step


def case(clock: Clock, reporter: RecordingReporter, **how: Any) -> Case:
    """Audits by outcome, told to `reporter`."""
    raised, stretch = how.pop("raised", 0.0), how.pop("stretch", 1.0)
    policy = how.pop("policy", "stop")
    deferred, steps = how.pop("deferred", False), how.pop("steps", STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        schedule = Schedule(check_every=STEPS, ckpt_every=None, **how)
    return Case(
        step=step_on(clock, raised, stretch),
        loss=loss_of,
        optimizers=fused if deferred else adamw,
        schedule=schedule,
        steps=steps,
        options={"reporter": reporter, "policy": policy, **({"mode": "deferred"} if deferred else {})},
    )


CASES: dict[str, dict[str, Any]] = {
    "budget": {"overhead_budget": 0.5, "audit_every": 8},
    "dropped": {"max_poisoned_steps": 1, "stretch": math.nan, "policy": "skip", "steps": 26},
    "spike of the loss": {"max_poisoned_steps": 29, "raised": 100.0, "steps": 26},
    "spike of the norm": {"max_poisoned_steps": 29, "stretch": 200.0, "deferred": True, "steps": 26},
}
