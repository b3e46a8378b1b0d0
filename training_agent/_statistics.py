"""Running statistics of torch's own layers: what a forward leaves in them is compared by audits.

Comes in: the wrapped module, right after its forward, in a step or in a replay. Goes out: its layers' buffers
in a fixed order. Next: `_evidence` digests them, `_examine` says when they cannot be compared.

Only layers whose forward is torch's own, and running statistics of its norms' subclasses: such code does the
same on every rank. A buffer that the user's own forward writes may be one rank's affair (a histogram that
rank 0 keeps from some step on), so that a difference would say nothing about a GPU.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ._walk import modules
from .checks.sharded import is_sharded

_KEPT_BY_NORMS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, slots=True)
class StatisticsOff:
    """Running statistics are no function of the micro-batch here, and why; equal on all ranks."""

    reason: str


@dataclass(slots=True)
class Statistics:
    """Those of one module; whether they are compared is decided alike on all ranks."""

    module: nn.Module
    compared: bool = True

    def now(self) -> list[Tensor]:
        """Each buffer once; copies that stand in for them during a replay take their places."""
        if not self.compared:
            return []
        found: dict[int, Tensor] = {}
        for layer in modules(self.module):
            if layer._buffers:
                found |= {id(b): b for b in _own_buffers(layer)}
        return list(found.values())

    def settings(self) -> str:
        """What the layers were told, such as their momentum; other settings give other statistics."""
        return repr([layer.extra_repr() for layer in modules(self.module) if _own_buffers(layer)])


def _own_buffers(layer: nn.Module) -> list[Tensor]:
    if not isinstance(layer._buffers, dict):  # a scripted module: code of the user's
        return []
    kept = {key: b for key, b in layer._buffers.items() if b is not None and not is_sharded(b)}
    forward = inspect.getattr_static(type(layer), "forward", None)
    origin = str(getattr(forward, "__module__", ""))
    torchs = forward is not nn.Module.forward and origin.partition(".")[0] == "torch"
    if torchs and "forward" not in vars(layer):
        return list(kept.values())
    return [kept[key] for key in _KEPT_BY_NORMS if key in kept] if isinstance(layer, _NormBase) else []
