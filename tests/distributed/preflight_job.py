"""A training script for `sdc preflight`: `noisy` makes one operator's backward differ from run to run,
`faulty` has the GPU of rank 1 compute wrong.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from training_agent import (
    AgentSettings,
    CheckpointStore,
    Schedule,
    attach,
    hold_while_quarantined,
    job_reporter,
)
from training_agent.faults import Element, FaultSpec, Injection, Where


class Noisy(torch.autograd.Function):
    """Identity, with noise in its gradient: a kernel with atomic adds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.seed()
        return gradient + 1e-3 * torch.randn(gradient.shape, generator=generator)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    noisy = "noisy" in sys.argv
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def compute_loss(model: Any, batch: Tensor) -> Tensor:
        out = model(batch)
        return ((Noisy.apply(out) if noisy else out) - batch).square().mean()

    settings = AgentSettings.from_env()
    store = None
    if settings.shared_dir is not None:
        hold_while_quarantined(settings)
        store = CheckpointStore(settings.shared_dir / "checkpoints", dist.get_world_size())
    reporter = job_reporter(settings, dist.get_rank())
    schedule = Schedule(10, 10, None)
    guard = attach(
        model,
        optimizer,
        compute_loss=compute_loss,
        schedule=schedule,
        settings=settings,
        reporter=reporter,
        checkpoints=store,
    )
    if "faulty" in sys.argv:
        fault = FaultSpec(Where.FORWARD_OUTPUT, Element(1000.0), rank=1, step=1, seed=3)
        layer = model.module
        Injection(fault, rank=dist.get_rank(), step=lambda: 1, phase=lambda: guard.phase, module=layer)
    for _ in range(3):
        guard.compute_loss(model, torch.randn(4, 8)).backward()
        optimizer.step()
        sys.stdout.write("an update was made\n")


main()
