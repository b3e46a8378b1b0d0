"""What is compared: plain DDP twice, the published design, and ours, each with a model of its own.

All step through the same schedule, so that each round holds one step of the same kind of each subject. What
is off by default is measured in process groups of its own ("options"), beside plain DDP and ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.bench.model import Decoder, Size, batch_for, compute_loss
from tests.published.design import PublishedGuard
from training_agent import AgentSettings, Schedule, attach
from training_agent.contract import Job

AUDIT_EVERY, CHECK_EVERY = 4, 3  # often, to see each kind of step; the product's schedules are composed
NO_SAVE = 1_000_000
PLAIN, AGAIN, PUBLISHED, OURS = "plain", "plain again", "published", "ours"
FORWARD, LAZY = "ours, forward audits", "ours, lazy naming"
ANY_TIME = "ours, saves at any time"  # each weight check compares the optimizer's state as well
REDUCTION, OUTCOME = "ours, checksum of the reduction", "ours, rate by outcome"
FORCED = "ours, kernels forced on every step"
LAYERS = "ours, layer audit every step"
OPTIONS: dict[str, dict[str, Any]] = {  # what their schedules ask for beside the usual
    REDUCTION: {"reduction": True},  # nearly all of its rounds still measure the noise: no cheaper
    OUTCOME: {"max_poisoned_steps": AUDIT_EVERY - 1},
    FORCED: {"kernels": "forced"},
    LAYERS: {"layer_every": 1},  # on every step without a whole audit
}
GROUPS = {
    "schedules": (PLAIN, AGAIN, PUBLISHED, OURS, FORWARD, LAZY, ANY_TIME),
    "options": (PLAIN, AGAIN, OURS, *OPTIONS),
}


def kind_of(step: int) -> str | None:
    """healthy, weights or audit; None where two meet."""
    audit, weights = step % AUDIT_EVERY == 0, step % CHECK_EVERY == 0
    if audit and weights:
        return None
    return "audit" if audit else "weights" if weights else "healthy"


class Subject:
    """One training job inside this process."""

    def __init__(self, name: str, size: Size, tokens: int) -> None:
        self.name, self.size, self.tokens = name, size, tokens
        self.rank = dist.get_rank()
        torch.manual_seed(1)
        self.ddp = DistributedDataParallel(Decoder(size))
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=1e-4)
        self.step_number = 0
        self.loss_of: Callable[..., Tensor] = compute_loss
        self.guard: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # schedules with gaps, named by the subject
            self._attach()

    def step(self) -> None:
        """One training step."""
        self.step_number += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.loss_of(self.ddp, self.batch(self.step_number, self.rank)).backward()
        self.optimizer.step()
        if isinstance(self.guard, PublishedGuard):
            self.guard.begin()

    def batch(self, step: int, rank: int) -> Tensor:
        """The tokens of a rank."""
        return batch_for(self.size, self.tokens, rank, step)

    def close(self) -> None:
        """Hooks off."""
        if self.guard is not None:
            self.guard.close()

    def _attach(self) -> None:
        # Saves are rare, as by default: where one may follow, a check compares optimizer state as well.
        saves = None if self.name == ANY_TIME else NO_SAVE
        options = {"kernels": "default"} if self.name == FORWARD else OPTIONS.get(self.name, {})
        schedule = Schedule(AUDIT_EVERY, CHECK_EVERY, saves, **options)
        if self.name == PUBLISHED:
            self.guard = PublishedGuard(
                self.ddp, self.optimizer, compute_loss, lambda s, r: (self.batch(s, r),), schedule, 1
            )
        elif self.name not in (PLAIN, AGAIN):
            self.guard = attach(
                self.ddp,
                self.optimizer,
                compute_loss=compute_loss,
                schedule=schedule,
                settings=settings_for(self.rank),
                naming="lazy" if self.name == LAZY else "full",
            )
        if self.guard is not None:
            self.loss_of = self.guard.compute_loss


def settings_for(rank: int) -> AgentSettings:
    """Every rank on a node of its own."""
    return AgentSettings("bench", Job("bench", "uid"), f"hyperpod-i-{rank:017x}", gpu_uuids=(f"GPU-{rank}",))
