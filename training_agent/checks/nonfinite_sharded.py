"""Check 1 under `fully_shard`: local gradients enter gathered leaves, reduced ones come as shards.

Comes in: `_leaves.GatheredLeaves`, this rank's shards. Goes out: what `checks.nonfinite` gives, of the same
meaning: the local gradient is that of this rank's own micro-batch for whole parameters; of the reduced one
each rank reads its shards, and all of them together see everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .._evidence import norm
from .._leaves import GatheredLeaves
from ..policy import Naming
from .nonfinite import GradientNorms
from .sharded import local_part


class ShardedNorms(GradientNorms):
    """`GradientNorms` for shards; each local gradient is read as it enters, since it is gone right after."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        active: Callable[[], bool],
        leaves: GatheredLeaves,
        *,
        naming: Naming = Naming.FULL,
    ) -> None:
        self._leaves = leaves
        super().__init__(parameters, active, naming=naming)

    def dropped(self) -> bool:
        """Whether the gradients were thrown away; never by their values, which differ from rank to rank.

        A backward that reduces nothing (`set_requires_gradient_sync(False)`) leaves no shard to throw away.
        """
        left = any(version is not None for version in self._versions)
        return left and all(g is None for g in self._gradients())

    def remove(self) -> None:
        """Take the hooks away, those of the leaves included."""
        super().remove()
        self._leaves.remove()

    def _hook(self, read: Sequence[bool]) -> None:
        def entering(index: int, gradient: Tensor) -> None:
            if not self.active():
                return
            self._note(index)
            if read[index]:
                norms = self._locals[-1]
                known, new = norms[index], norm(gradient.detach())
                norms[index] = new if known is None else torch.maximum(known, new)

        self._leaves.watch(entering)

    def _to_read(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return list(gradients)

    def _gradients(self) -> list[Tensor | None]:
        return [None if p.grad is None else local_part(p.grad) for p in self._parameters]
