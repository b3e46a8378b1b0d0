"""Faults of one rank as hooks on the small model; each strikes only in the phases that it lives in.

The product's own injector is `training_agent.faults`; these are simpler and cover places that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tests.distributed.harness import Fault
from training_agent._phase import Phase
from training_agent.guard import Guard

EVERYWHERE = tuple(p for p in Phase if p is not Phase.WARM_UP)  # a bad GPU is bad for others' batches too
STEP_ONLY = (Phase.TRAINING,)
ALWAYS = range(23, 10_000)


def _spoil(o: Tensor, rank: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change one element (another one on each rank) by a detached delta, so that the gradient path stays."""
    delta = torch.zeros_like(o)
    position = 5 + rank
    value = o.detach().reshape(-1)[position]
    delta.view(-1)[position] = change(value) - value
    return o + delta


def forward(ranks: Iterable[int], steps: Iterable[int], phases: tuple[Phase, ...], value: float) -> Fault:
    """One element of a layer's output times `value` (NaN stays NaN)."""

    def fault(model: nn.Module, guard: Guard | None, rank: int, step: Callable[[], int]) -> None:
        def hook(_module: nn.Module, _args: object, output: Tensor) -> Tensor | None:
            if step() in steps and guard is not None and guard.phase in phases:
                return _spoil(output, rank, lambda v: v * value)
            return None

        if rank in ranks:
            model.blocks[1].down.register_forward_hook(hook)

    return fault


def flip_weight(model: nn.Module, name: str, bit: int = 22) -> None:
    """Flip one bit of one stored weight."""
    with torch.no_grad():
        words = model.get_parameter(name).data.view(torch.int32)
        words.view(-1)[3] ^= 1 << bit
