"""Buffers that nobody writes (masks, tables of positions): their copies must stay equal, as weights must.

Comes in: the module, and when DDP broadcasts its buffers. Goes out: which buffers no rank has written since
the start of training, and what their copies once were. Next: `_weight_check` compares them at a save.

Running statistics, counters and averages differ legally between ranks, and names do not tell them. So a
buffer takes part while its version counter stands still on all ranks (what DDP's own broadcast adds apart)
and after its copies were seen to be equal once. A flip in memory raises no counter. What is written through
`.data` raises none either: see `judged` for what then happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ._statistics import Statistics
from ._trail import raw
from .checks.sharded import is_sharded
from .digest import digest

PREFIX = "buffer "


@dataclass(slots=True)
class _Watched:
    holder: dict[str, Tensor | None]  # a module's own table of buffers
    key: str
    tensor: Tensor
    version: int

    def moved(self) -> bool:
        """Whether it was replaced or written in place since."""
        return self.holder.get(self.key) is not self.tensor or self.tensor._version != self.version


@dataclass(slots=True)
class SteadyBuffers:
    """Those of one module on this rank, and what all ranks know of them."""

    module: nn.Module
    known: dict[str, str] = field(default_factory=dict)  # equal on all ranks: digest when they were learned
    learned: bool = False  # once per start, alike on all ranks
    _watched: dict[str, _Watched] = field(default_factory=dict)
    _started_at: int | None = None  # steps; None: training has not begun
    _broadcast_next: bool = False

    def begin(self, step: int) -> None:
        """The first step is about to be computed; whatever was written before does not matter."""
        statistics = {id(b) for b in Statistics(self.module).now()}  # written by kernels, without a counter
        shared = {p.untyped_storage().data_ptr() for p in self.module.parameters() if not is_sharded(p)}
        self._watched = {
            name: _Watched(holder, key, buffer, buffer._version)
            for name, (holder, key, buffer) in _located(self.module).items()
            if id(buffer) not in statistics
            and _readable(buffer)
            and buffer.untyped_storage().data_ptr() not in shared - {0}
        }
        self._started_at = step

    def may_learn(self, step: int) -> bool:
        """Whether it is time to."""
        return not self.learned and self.trained(step)

    def trained(self, step: int) -> bool:
        """Whether steps were trained in this start: what a rank writes for itself has shown by then."""
        return self._started_at is not None and step > self._started_at

    def before_broadcast(self) -> None:
        """DDP's forward begins: what moved until now was written by somebody else."""
        self._look()
        self._broadcast_next = True

    def after_broadcast(self) -> None:
        """The module's forward begins; without DDP's around it nobody has broadcast anything."""
        if not self._broadcast_next:
            self._look()
        self._broadcast_next = False
        for one in self._watched.values():
            one.version = one.tensor._version

    def _look(self) -> None:
        """Let go of what moved; statistics are gone after the first step, and nothing is left to look at."""
        moved = [name for name, one in self._watched.items() if one.moved()]
        for name in moved:
            del self._watched[name]

    # -- what all ranks do alike ----------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """All buffers that this rank has now."""
        return tuple(_located(self.module))

    def written(self, names: Sequence[str]) -> list[bool]:
        """For each whether this rank has written or replaced it, or does not watch it."""
        self._look()
        return [name not in self._watched for name in names]

    def tensors(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Watched ones by prefixed name."""
        return {PREFIX + name: self._watched[name].tensor.detach() for name in names}

    def digests(self, names: Sequence[str]) -> dict[str, str]:
        """This rank's own, as hex digits."""
        tensors = list(self.tensors(names).values())
        return dict(zip(names, map(raw, digest(tensors)), strict=True)) if tensors else {}

    def leave_out(self, names: Sequence[str]) -> None:
        """Never compare these again in this start."""
        for name in names:
            self.known.pop(name, None)


def _located(module: nn.Module) -> dict[str, tuple[dict[str, Tensor | None], str, Tensor]]:
    """Every buffer once, by its first name, with where it is held."""
    found: dict[str, tuple[dict[str, Tensor | None], str, Tensor]] = {}
    seen: set[int] = set()
    for prefix, layer in module.named_modules():
        plain = isinstance(layer._buffers, dict)  # unlike those of a scripted module
        for key, buffer in layer._buffers.items() if plain else ():
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{prefix}.{key}" if prefix else key] = (layer._buffers, key, buffer)
    return found


def _readable(buffer: Tensor) -> bool:
    """Whether it has bytes here and a counter that tells of writes."""
    plain = type(buffer) is Tensor and buffer.layout is torch.strided and not buffer.is_quantized
    return plain and not buffer.is_meta and not buffer.is_inference()


@dataclass(frozen=True, slots=True)
class Apart:
    """Buffers whose copies are no longer what they were, alike on all ranks."""

    suspects: dict[str, int]  # by buffer the index of the one rank whose copy alone has changed
    everywhere: tuple[str, ...]  # all copies changed, to one value
    several: tuple[str, ...]  # the copies of several ranks changed


def judged(known: Mapping[str, str], votes: Mapping[str, Sequence[str]]) -> Apart:
    """Who holds something else than what all held.

    No version counter tells of a write. One copy that alone has changed is a fault, or a rank wrote it
    through `.data`. Several at once are a program: faults do not strike the same buffer of two ranks.

    Args:
        votes: for each buffer that changed somewhere the digest of each rank's copy.
    """
    suspects: dict[str, int] = {}
    everywhere, several = [], []
    for name, digests in votes.items():
        others = [rank for rank, own in enumerate(digests) if own != known[name]]
        if len(others) == 1:
            suspects[name] = others[0]
        elif len(set(digests)) == 1:
            everywhere.append(name)
        else:
            several.append(name)
    return Apart(suspects, tuple(everywhere), tuple(several))


FEWEST = 16  # elements of a table


def looks_like_a_flip(own: Tensor, theirs: Tensor) -> bool:
    """Whether one bit of one element differs, in a way that no program's write leaves behind.

    Programs that write single elements write counters, flags and scales, which are round numbers, or
    averages, which end in other last bits. So: a table of 32- or 64-bit floats, one bit above the last
    quarter of the mantissa, and the value round neither before nor after.
    """
    if own.is_complex():
        own, theirs = torch.view_as_real(own), torch.view_as_real(theirs)
    kind = {torch.float32: (torch.int32, 23), torch.float64: (torch.int64, 52)}.get(own.dtype)
    if kind is None or own.numel() < FEWEST or own.shape != theirs.shape:
        return False
    words, mantissa = kind
    one, other = (t.detach().reshape(-1).contiguous().view(words) for t in (own, theirs.to(own.device)))
    at = (one != other).nonzero().flatten().tolist()
    if len(at) != 1:
        return False
    mask = (1 << (8 * own.element_size())) - 1
    a, b = (int(t[at[0]]) & mask for t in (one, other))
    bits, last_half = a ^ b, (1 << mantissa // 2) - 1
    single = bits & (bits - 1) == 0 and bits.bit_length() > mantissa // 4
    return bool(single and a & last_half and b & last_half)
