"""What a forward and backward produced, as a small table that is compared bit for bit.

Comes in: gradients as they enter accumulation, outputs, the loss. Goes out: `Evidence`; two of them agree or
not. A non-finite tensor has one fixed row instead of its digest: which parameters are non-finite holds under
any kernel, the bits of a NaN do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from .digest import digest

_ABSENT, _FINITE, _NONFINITE = 0, 1, -1  # whole rows of three equal words


class Depth(str, Enum):
    """How much is compared."""

    BITS = "bits"  # digests of everything; both sides ran deterministic kernels
    OUTPUT = (
        "output"  # digests of output and loss only: no backward, any kernel whose forward is reproducible
    )
    FINITENESS = "finiteness"  # only which gradients are non-finite, and whether the loss is


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows: one per parameter, one for the loss, then (not at depth FINITENESS) one per output tensor."""

    depth: Depth
    table: Tensor  # int64, [parameters + 1 + outputs, 3], host memory
    tensors: int  # that stand behind the rows
    nbytes: int  # that were read for them

    def agrees(self, other: Evidence) -> bool:
        """Whether the same number of tensors and bytes came out with the same contents."""
        same_size = (self.tensors, self.nbytes) == (other.tensors, other.nbytes)
        return self.depth is other.depth and same_size and torch.equal(self.table, other.table)

    def forward_agrees(self, other: Evidence, parameters: int) -> bool:
        """Whether at least loss and outputs are equal; the first `parameters` rows are gradients."""
        return torch.equal(self.table[parameters:], other.table[parameters:])

    @property
    def has_nonfinite(self) -> bool:
        """Whether some tensor behind it is not finite."""
        return bool((self.table == _NONFINITE).all(dim=1).any())

    def short(self) -> str:
        """16 hex digits for people and votes; equal evidence has equal ones."""
        raw = self.table.numpy().tobytes() + f"|{self.tensors}|{self.nbytes}".encode()
        return hashlib.sha256(raw).hexdigest()[:16]


class Recorder:
    """Collects rows during one forward and backward. Everything stays on the device until `evidence()`."""

    def __init__(self, parameters: int, depth: Depth) -> None:
        self.depth = depth
        self._gradients: list[Tensor | None] = [None] * parameters
        self._loss: Tensor | None = None
        self._outputs: list[Tensor] = []
        self.tensors = 0
        self.nbytes = 0

    def gradient(self, index: int, gradient: Tensor) -> None:
        """Take the gradient of one parameter; it may be freed afterwards."""
        if self.depth is not Depth.OUTPUT:
            self._gradients[index] = self._row(gradient.detach())

    def loss(self, loss: Tensor) -> None:
        """Take the loss as returned."""
        self._loss = self._row(loss.detach())

    def output(self, tensor: Tensor) -> None:
        """Take one output tensor of the wrapped module; at depth FINITENESS the loss tells for it."""
        if self.depth is not Depth.FINITENESS:
            self._outputs.append(self._row(tensor.detach()))

    @property
    def gradients_seen(self) -> int:
        """Parameters that got a gradient."""
        return sum(row is not None for row in self._gradients)

    def evidence(self) -> Evidence:
        """Bring the table to the host: one transfer."""
        rows = [*self._gradients, self._loss, *self._outputs]
        known = next((r for r in rows if r is not None), torch.zeros(3, dtype=torch.int64))
        absent = torch.full_like(known, _ABSENT)
        table = torch.stack([absent if r is None else r for r in rows]).cpu()
        return Evidence(self.depth, table, self.tensors, self.nbytes)

    def _row(self, tensor: Tensor) -> Tensor:
        finite = is_finite(tensor)
        if self.depth is Depth.FINITENESS:
            return _finiteness_row(finite)
        self.tensors += 1
        self.nbytes += tensor.numel() * tensor.element_size()
        row = digest([tensor])[0]
        return torch.where(finite, row, torch.full_like(row, _NONFINITE))


def finiteness(norms: Sequence[Tensor | None], loss: Tensor | None) -> Evidence:
    """Evidence of depth FINITENESS from what check 1 has: a norm per gradient (None: none came), the loss."""
    table = torch.full((len(norms) + 1, 3), _ABSENT, dtype=torch.int64)
    for i, known in enumerate([*norms, None if loss is None else norm(loss.detach())]):
        if known is not None:
            table[i] = _finiteness_row(torch.isfinite(known)).cpu()
    return Evidence(Depth.FINITENESS, table, 0, 0)


def _finiteness_row(finite: Tensor) -> Tensor:
    row = torch.full((3,), _FINITE, dtype=torch.int64, device=finite.device)
    return torch.where(finite, row, torch.full_like(row, _NONFINITE))


def is_finite(tensor: Tensor) -> Tensor:
    """Bool scalar, on the device: finite, and not too large for a float32 norm (above about 1.8e19)."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    return torch.isfinite(norm(tensor))


def size_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """One scalar that is finite if all floating tensors are; stands in for a loss that nobody gave us.

    A module's output gradient is shipped as truth, NaN included, so what a faulty forward returned must be
    compared as well.
    """
    norms = [norm(t.detach()).float() for t in tensors if t.is_floating_point() or t.is_complex()]
    return torch.stack(norms).abs().max() if norms else None


def norm(tensor: Tensor) -> Tensor:
    """2-norm as a scalar on the device, in float32 at least, from one read."""
    wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
    result: Tensor = torch.linalg.vector_norm(tensor, dtype=wide)
    return result
