"""Master weights: float32 copies that an optimizer updates where the model's own weights are bf16 or fp16.

Comes in: the optimizers and the trained parameters. Goes out: the tensors that stand for parameters which no
optimizer holds, by name. Next: `_refusals` takes them for held, `_weight_check` compares them at a save.

A tensor of an optimizer that the model has not may be anything, one rank's own included (DDP knows nothing of
it). It is taken for a master only if it has the values of the parameters that it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .checks.sharded import is_sharded

if TYPE_CHECKING:
    from ._startup import Setup

PREFIX = "master weight of "


@torch.no_grad()
def master_weights(
    optimizers: Sequence[Optimizer], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """By name, such as "master weight of head.weight"; {} where some are missing, or none is needed.

    Each stands for one parameter, in their order; or they hold all of them end to end ("master weights 0").
    """
    held = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    alone = {name: p for name, p in parameters.items() if id(p) not in held}
    own = {id(p) for p in parameters.values()}
    extra = [p for i, p in held.items() if i not in own]
    if not alone or not extra or any(map(is_sharded, (*alone.values(), *extra))):
        return {}
    ours = list(alone.values())
    if [p.shape for p in ours] == [p.shape for p in extra]:
        same = all(map(_stands_for, extra, ours))
        return dict(zip((PREFIX + name for name in alone), extra, strict=True)) if same else {}
    if sum(p.numel() for p in ours) != sum(p.numel() for p in extra):
        return {}
    ends = torch.cat([p.reshape(-1).to(ours[0].device) for p in extra])
    pieces = torch.split(ends, [p.numel() for p in ours])
    same = all(_stands_for(piece, p.reshape(-1)) for piece, p in zip(pieces, ours, strict=True))
    return {f"master weights {i}": p for i, p in enumerate(extra)} if same else {}


def still_held(masters: Mapping[str, Tensor], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Those that an optimizer still updates."""
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    return {name: m for name, m in masters.items() if id(m) in held}


def _stands_for(master: Tensor, parameter: Tensor) -> bool:
    return torch.equal(master.to(parameter.device, parameter.dtype), parameter)


def drop_gradients(setup: Setup) -> None:
    """Take every gradient away, so that no update follows: an optimizer passes over what has none."""
    for optimizer in setup.optimizers:
        optimizer.zero_grad(set_to_none=True)
    for parameter in setup.parameters.values():
        parameter.grad = None  # the optimizers may hold masters of these
