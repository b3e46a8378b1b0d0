"""Models with every kind of buffer, and one in bf16. Next: `state_job` trains them on three ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from training_agent._phase import Phase


class Buffered(nn.Module):
    """Steady buffers of many types, and others that somebody writes."""

    table: Tensor
    mask: Tensor
    ema: Tensor
    mine: Tensor
    late: Tensor
    spoken: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)
        steps = torch.arange(32, dtype=torch.float32)
        self.register_buffer("table", 10000.0 ** (-steps / 37), persistent=False)
        self.register_buffer("phases", torch.polar(torch.ones(32), steps / 3))  # complex
        self.register_buffer("mask", torch.arange(16) > 3)
        self.register_buffer("positions", torch.arange(64))
        self.register_buffer("halves", (steps / 7).bfloat16())
        self._ddp_params_and_buffers_to_ignore = ["eighth"]  # gloo cannot broadcast it
        self.register_buffer("eighth", (steps / 7).to(torch.float8_e4m3fn))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("shared", self.up.weight.detach())  # moves with the weight
        self.register_buffer("ema", torch.zeros(16))
        self.register_buffer("spoken", torch.zeros(4))
        self.register_buffer("mine", torch.zeros((), dtype=torch.int64))  # written from the start, by `.data`
        self.register_buffer("late", torch.zeros(4))  # in place, from step 5 on

    STEADY = ("table", "phases", "mask", "positions", "halves", "eighth", "empty", "spoken")

    def hidden(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.up(x))) * self.table[:16] + self.mask

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        self.ema = 0.9 * self.ema + 0.1 * hidden.detach().mean(0)
        return self.head(hidden)


class Checkpointed(Buffered):
    """The statistics are written again in the backward."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.hidden, x, use_reentrant=False))


class Histogram(Buffered):
    """Rank 0 keeps something for itself in its forward, from its 20th call on: legal, and in nobody's way."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.calls = rank, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.rank == 0 and self.calls > 20:
            self.spoken += x.detach()[0, :4]
        return super().forward(x)


def unsteady_momentum(model: Buffered) -> None:
    """Statistics that are no function of the batch; the outputs are."""

    def other(module: nn.Module, _args: Any) -> None:
        module.momentum = (time.monotonic_ns() % 1000) / 5000

    model.norm.register_forward_pre_hook(other)


def spoilt_statistics(model: Buffered, strikes: Any) -> None:
    """A GPU that updates one running mean wrong wherever `strikes(phase)` says so."""

    def hook(module: nn.BatchNorm1d, _args: Any, _output: Tensor) -> None:
        if module.training and strikes():
            module.running_mean.data[3] += 0.125  # type: ignore[union-attr]

    model.norm.register_forward_hook(hook)


class Halves(nn.Module):
    """Weights in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.up(x.bfloat16()))).float()


EVERYWHERE = (Phase.TRAINING, Phase.REPLAY, Phase.ARBITRATION)


class Counting(torch.optim.AdamW):
    """Counts for each weight what only its own rank sees, on rank 1 from some step on."""

    beginning = 1

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                counted = dist.get_rank() == 1 and int(kept["step"]) >= self.beginning
                kept["seen"] = kept.get("seen", torch.zeros(4)) + float(counted)


class CountingLater(Counting):
    """Only once all were equal."""

    beginning = 4


class Preconditioned(torch.optim.AdamW):
    """Keeps matrices in a list, as SOAP and Shampoo do."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                rows = p.detach().reshape(len(p), -1)
                if self.state[p]:  # AdamW makes its own where there is nothing
                    self.state[p]["GG"] = [None, {"left": rows @ rows.T}]
        super().step(closure)
