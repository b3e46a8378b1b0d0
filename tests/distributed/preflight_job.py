"""A training script for `sdc preflight`: `noisy` makes one operator's backward differ from run to run."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from training_agent import Schedule, attach


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

    guard = attach(model, optimizer, compute_loss=compute_loss, schedule=Schedule(10, 10, None))
    for _ in range(3):
        guard.compute_loss(model, torch.randn(4, 8)).backward()
        optimizer.step()
        sys.stdout.write("an update was made\n")


main()
