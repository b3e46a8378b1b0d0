"""What a forward and backward produced, as a small table that is compared bit for bit.

Comes in: gradients as they enter accumulation, outputs, the loss. Goes out: `Evidence`; two of them agree or
not. A non-finite tensor has one fixed row instead of its digest: which parameters are non-finite holds under
any kernel, the bits of a NaN do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from ._readable import kind_of, readable, readable_ones
from .digest import digest
from .warn_once import warn_once

_HALF = {torch.float16, torch.bfloat16}
_WIDENED = set[torch.dtype]()  # not empty: norms are float64
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
    """Rows: one per parameter, the loss; deeper than FINITENESS also one per output, then per statistic."""

    depth: Depth
    table: Tensor  # int64, [parameters + 1 + outputs, 3], host memory
    tensors: int  # that stand behind the rows
    nbytes: int  # that were read for them
    statistics: int = 0  # rows at the end for running statistics

    def agrees(self, other: Evidence) -> bool:
        """Whether the same number of tensors and bytes came out with the same contents."""
        same_size = (self.tensors, self.nbytes) == (other.tensors, other.nbytes)
        return self.depth is other.depth and same_size and torch.equal(self.table, other.table)

    def agrees_but_for_statistics(self, other: Evidence) -> bool:
        """Whether gradients, loss and outputs are equal."""
        return self.depth is other.depth and self.forward_agrees(other, 0)

    def forward_agrees(self, other: Evidence, parameters: int) -> bool:
        """Whether at least loss and outputs are equal; the first `parameters` rows are gradients."""
        own, theirs = (e.table[parameters : len(e.table) - e.statistics] for e in (self, other))
        return torch.equal(own, theirs)

    @property
    def has_nonfinite(self) -> bool:
        """Whether some tensor behind it is not finite."""
        return bool((self.table == _NONFINITE).all(dim=1).any())

    def short(self) -> str:
        """16 hex digits for people and votes; equal evidence has equal ones."""
        raw = self.table.numpy().tobytes() + f"|{self.tensors}|{self.nbytes}".encode()
        return hashlib.sha256(raw).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table, still on the device; `extent` is not finite where the tensor is not."""

    words: Tensor  # int64, [3]
    extent: Tensor


class Recorder:
    """Collects rows during one forward and backward. Everything stays on the device until `evidence()`."""

    def __init__(self, parameters: int, depth: Depth, read: Sequence[bool] | None = None) -> None:
        """`read`: whose rows depth FINITENESS has, see `checks.nonfinite.read_locally`; None: all."""
        self.depth = depth
        self._read = read
        self._gradients: list[_Row | None] = [None] * parameters
        self._loss: _Row | None = None
        self._outputs: list[_Row] = []
        self._statistics: list[_Row] = []
        self.tensors = 0
        self.nbytes = 0

    def gradient(self, index: int, gradient: Tensor) -> None:
        """Take the gradient of one parameter; it may be freed afterwards."""
        skipped = self.depth is Depth.FINITENESS and self._read is not None and not self._read[index]
        if self.depth is not Depth.OUTPUT and not skipped:
            self._gradients[index] = self._row(gradient.detach())

    def loss(self, loss: Tensor) -> None:
        """Take the loss as returned."""
        self._loss = self._row(loss.detach())

    def output(self, tensor: Tensor) -> None:
        """Take one output tensor of the wrapped module; at depth FINITENESS the loss tells for it."""
        if not readable(tensor):
            text = "an output of the model is not compared by audits, it has no bytes of its own:"
            warn_once("unreadable outputs", f"{text} {kind_of(tensor)}")
        elif self.depth is not Depth.FINITENESS:
            self._outputs.append(self._row(tensor.detach()))

    def returned(self, outputs: Iterable[Tensor], statistics: Sequence[Tensor]) -> None:
        """Take what a forward of the wrapped module returned, and what it left in running statistics."""
        for tensor in outputs:
            self.output(tensor)
        self._take_statistics(statistics)

    def _take_statistics(self, tensors: Sequence[Tensor]) -> None:
        if self.depth is Depth.FINITENESS or not tensors:
            return
        self.tensors += len(tensors)
        self.nbytes += sum(t.numel() * t.element_size() for t in tensors)
        words = digest([t.detach() for t in tensors])  # one call: there are many and they are small
        self._statistics += [_Row(w, _extent(t.detach())) for w, t in zip(words, tensors, strict=True)]

    @property
    def gradients_seen(self) -> int:
        """Parameters that got a gradient."""
        return sum(row is not None for row in self._gradients)

    def evidence(self) -> Evidence:
        """Bring the table to the host: one transfer."""
        rows = [*self._gradients, self._loss, *self._outputs, *self._statistics]
        known = [r for r in rows if r is not None]
        table = torch.full((len(rows), 3), _ABSENT, dtype=torch.int64, device="cpu")
        if known:
            where_to = known[0].words.device  # a buffer may lie elsewhere
            words = torch.stack([r.words.to(where_to) for r in known])
            finite = torch.stack([r.extent.to(where_to) for r in known]).isfinite()
            where = [i for i, r in enumerate(rows) if r is not None]
            table[where] = torch.where(finite.unsqueeze(1), words, _NONFINITE).cpu()
        return Evidence(self.depth, table, self.tensors, self.nbytes, len(self._statistics))

    def _row(self, tensor: Tensor) -> _Row:
        extent = _extent(tensor)
        if self.depth is Depth.FINITENESS:
            return _Row(torch.full((3,), _FINITE, dtype=torch.int64, device=extent.device), extent)
        self.tensors += 1
        self.nbytes += tensor.numel() * tensor.element_size()
        return _Row(digest([tensor])[0], extent)


def finiteness(norms: Sequence[Tensor | None], loss: Tensor | None) -> Evidence:
    """Evidence of depth FINITENESS from what check 1 has: a norm per gradient (None: none read), the loss."""
    table = torch.full((len(norms) + 1, 3), _ABSENT, dtype=torch.int64, device="cpu")
    for i, known in enumerate([*norms, None if loss is None else norm(loss.detach())]):
        if known is not None:
            table[i] = _FINITE if bool(torch.isfinite(known)) else _NONFINITE
    return Evidence(Depth.FINITENESS, table, 0, 0)


def _extent(tensor: Tensor) -> Tensor:
    """Float64 scalar, on the device, finite if the tensor is and its norm fits (float32: about 1.8e19)."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return torch.zeros((), dtype=torch.float64, device=tensor.device)
    return norm(tensor).double()


def size_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """One scalar that is finite if all floating tensors are; stands in for a loss that nobody gave us.

    A module's output gradient is shipped as truth, NaN included, so what a faulty forward returned must be
    compared as well.
    """
    floating = [t for t in readable_ones(tensors) if t.is_floating_point() or t.is_complex()]
    norms = [norm(t.detach()).float() for t in floating]
    return torch.stack(norms).abs().max() if norms else None


def widen() -> None:
    """From now on this process takes norms in float64, which hold what a float32 norm (1.8e19) does not."""
    _WIDENED.add(torch.float64)


def norm(tensor: Tensor) -> Tensor:
    """2-norm as a scalar on the device, in float32 at least, from one read."""
    if tensor.element_size() == 1:  # torch has no norm of eight-bit floats
        tensor = tensor.float()
    result: Tensor = torch.linalg.vector_norm(tensor, dtype=_norm_type(tensor.dtype))
    return result


def norms(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """`norm` of each, in one call where their types allow."""
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1:
        return [norm(t.detach()) for t in tensors]
    with torch.no_grad():
        result: Sequence[Tensor] = torch._foreach_norm(list(tensors), 2, _norm_type(*dtypes))
    return result


def _norm_type(dtype: torch.dtype) -> torch.dtype | None:
    """None: as torch chooses."""
    if _WIDENED and dtype.is_floating_point:
        return torch.float64
    return torch.float32 if dtype in _HALF else None
