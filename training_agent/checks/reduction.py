"""The all-reduce itself: each gradient's signed sum, in float64, before and after it.

Comes in: local gradients as they enter the reduction, and reduced ones before clipping. Goes out: how far the
sum after it is from the mean of the sums before it, in units of the rounding that is to be expected. Next:
`_reduction` judges. A sum sees what changes it: two errors that cancel are missed. It names nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._refusals import untraced
from .nonfinite import HOPS, GradientNorms, at_end_of_backward


class ReductionSums:
    """Sums of one backward, kept on the device; a step's last backward is the one that is judged."""

    def __init__(
        self, ddp: DistributedDataParallel, parameters: Sequence[nn.Parameter], norms: GradientNorms
    ) -> None:
        """Hook `parameters` for as long as `norms` does."""
        self._ddp, self._parameters, self._active = ddp, tuple(parameters), norms.active
        self._device = self._parameters[0].device
        self.roundings = torch.tensor(
            [torch.finfo(p.dtype).eps for p in self._parameters], dtype=torch.float64, device=self._device
        )
        own = [smallest(p.dtype) * math.sqrt(p.numel()) for p in self._parameters]
        half = [
            max(smallest(torch.float16) * math.sqrt(p.numel()), o)
            for p, o in zip(parameters, own, strict=True)
        ]
        self._floors = torch.tensor([own, half], dtype=torch.float64, device=self._device)
        norms.handles.append(ddp.register_forward_pre_hook(untraced(self._on_forward)))
        for i, p in enumerate(self._parameters):
            norms.handles.append(p.register_post_accumulate_grad_hook(self._on_accumulated(i)))  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        """A step begins."""
        self._backwards = 0
        self._running = False  # a backward is
        self._reduces = True  # the backward to come
        self._before: list[Tensor | None] = []  # sum and squared norm, per parameter
        self._after: Tensor | None = None

    @property
    def hooks(self) -> list[tuple[Any, Any]]:
        """The user's communication hooks, and what else makes the reduction another one than DDP's own."""
        mixed = getattr(self._ddp, "mixed_precision", None)
        return [*getattr(self._ddp, "_comm_hooks", []), *([(mixed, None)] if mixed is not None else [])]

    @property
    def floors(self) -> Tensor:
        """float64 [parameters]: norms below which rounding is no finer, by type; a hook may send float16."""
        return self._floors[1 if self.hooks else 0]

    @property
    def before(self) -> Tensor | None:
        """float64 [2, parameters]: this rank's sums, squared norms; NaN: not known. None: no reduction."""
        if self._after is None:
            return None
        # Without a hook nothing entered; after an earlier backward something may lie there all the same.
        absent = 0.0 if self._backwards == 1 else math.nan
        blank = torch.full((2,), absent, dtype=torch.float64, device=self._device)
        return torch.stack([blank if s is None else s for s in self._before], dim=1)

    @property
    def after(self) -> Tensor | None:
        """float64 [parameters]: sums of the reduced gradients."""
        return self._after

    def _on_forward(self, _ddp: nn.Module, _args: object) -> None:
        if self._active():
            self._reduces = bool(self._ddp.require_backward_grad_sync)  # DDP decides here, too

    def _on_accumulated(self, index: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            gradient = parameter.grad
            if gradient is None or not self._active():
                return
            if not self._running:  # each is judged by itself: one before it may have reduced as well
                self._running = True
                self._before = [None] * len(self._parameters)
                self._after = None
                at_end_of_backward(self._on_reduced, HOPS)
            # At once: with bucket views the reduction writes where the gradient lies.
            flat = gradient.detach()
            square = torch.linalg.vector_norm(flat, dtype=_wide(flat)).double().square()
            self._before[index] = torch.stack([flat.sum(dtype=torch.float64), square])

        return hook

    def _on_reduced(self) -> None:
        self._backwards, self._running = self._backwards + 1, False
        if not self._reduces:
            return
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        every = [p.grad for p in self._parameters]
        self._after = torch.stack([zero if g is None else g.detach().sum(dtype=torch.float64) for g in every])


def deviations(total: Tensor, after: Tensor, roundings: Tensor, floors: Tensor, world: int) -> Tensor:
    """float64 [parameters]: distance of each sum in units of one rounding of the gradient's norm.

    The same for gradients of any size and distribution, since rounding errors grow with what is rounded;
    below the smallest normal number they do not shrink with it, so the unit does not either.

    Args:
        total: `before`, summed over the ranks.
        after: of this rank.
        roundings: machine epsilon of each parameter's type.
        floors: see `ReductionSums.floors`.
    """
    norm = (total[1] / world).sqrt()
    return (after - total[0] / world).abs() / (roundings * (norm + floors))


def smallest(dtype: torch.dtype) -> float:
    """Size below which elements of a type may round by more than machine epsilon, or be flushed to zero.

    float16 reaches it in earnest, and keeps its subnormal numbers; other types never do, and some devices
    flush theirs, which is an error of the whole number.
    """
    info = torch.finfo(dtype)
    return info.smallest_normal if dtype is torch.float16 else info.smallest_normal / info.eps


def largest_rounding(elements: int, world: int) -> float:
    """What `deviations` can reach without an error: `world` roundings of every element, all the same way.

    |sum of errors| <= world eps sum|g| <= world eps sqrt(n) norm, for any order of the additions (Higham,
    Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    return 2 * world * math.sqrt(elements)


def _wide(tensor: Tensor) -> torch.dtype | None:
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
