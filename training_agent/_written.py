"""Weights that a forward itself writes: an average for a teacher, a mask that is put on, renewed codes.

Comes in: the wrapped module while a discarded pass runs, and as audited steps begin. Goes out: the weights as
they were, and which of them no replay may be made with. Next: `_start` switches replays off, `_watch` skips.

A replay works on the very memory of the weights. What a forward writes there twice (a mask) is what it wrote
once; anything else would be applied again by each replay, and on one rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._compilers import eagerly
from ._kept import same_bits
from .digest import digest

Places = dict[str, tuple[int, int]]  # of each weight: its version counter, and where it lies
_LARGE = 1 << 30  # bytes of weights: more of them are digested, not copied


class WrittenWeights:
    """Those of one module, as far as its forwards have shown."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.again: frozenset[str] = frozenset()  # other ones each time: no replay can be made
        self.lost: frozenset[str] = frozenset()  # and too large to be put back
        self._settled: frozenset[str] = frozenset()  # written, and the second time nothing changes

    @contextmanager
    def undone(self, forward: Callable[[], Any], largest: Callable[[list[int]], list[int]]) -> Iterator[None]:
        """A block in which `forward` is computed, after which all weights are what they were.

        Args:
            largest: of the ranks' numbers. A forward has collectives, and some ranks' data may write what
                others' do not: all must compute it again, or none.
        """
        weights = _readable_ones(self._module)
        small = sum(p.numel() * p.element_size() for p in weights.values()) <= _LARGE
        before = self.places()
        lay = {name: p.detach() for name, p in weights.items()}
        own = {name: p.clone() for name, p in lay.items()} if small else {}
        rows = None if small or not lay else digest(list(lay.values()))
        yield
        now = self.places()
        touched = {name for name, place in before.items() if now.get(name) != place}
        if small:
            touched |= {name for name, value in own.items() if not _same(value, weights[name])}
        elif rows is not None:
            later = digest([p.detach() for p in weights.values()])
            touched |= {n for n, a, b in zip(weights, rows, later, strict=True) if not torch.equal(a, b)}
        somewhere = largest([int(name in touched) for name in weights])
        touched = {name for name, count in zip(weights, somewhere, strict=True) if count}
        if not small:
            self.lost |= touched
        if touched and small:
            moved = _other_each_time({name: weights[name] for name in touched}, forward)
            self.again |= moved
            self._settled |= touched - moved
            for name in touched:
                _put_back(weights[name], lay[name], own[name])

    def places(self) -> Places:
        """Where weights are now, and how often each was written."""
        weights = _readable_ones(self._module).items()
        return {name: (p._version, p.data_ptr()) for name, p in weights if name not in self._settled}

    def since(self, before: Places) -> str | None:
        """Why a replay would compute with other weights than a forward did that began there."""
        now = self.places()
        moved = [name for name, place in before.items() if now.get(name, place) != place]
        return f"weights were written between forward and update ({', '.join(moved[:3])})" if moved else None


def _other_each_time(touched: dict[str, nn.Parameter], forward: Callable[[], Any]) -> frozenset[str]:
    """Which are others after each forward, from wherever they begin: an average may be at rest now."""
    with eagerly(), torch.no_grad():
        for p in touched.values():
            if p.is_floating_point():
                p.mul_(1.5).add_(0.125)
        forward()
        first = {name: p.detach().clone() for name, p in touched.items()}
        forward()
    return frozenset(name for name, p in touched.items() if not _same(first[name], p))


def _put_back(weight: nn.Parameter, lay: Tensor, value: Tensor) -> None:
    """Where it lay, with what it held."""
    with torch.no_grad():
        if weight.data_ptr() != lay.data_ptr():
            weight.data = lay
        if not _same(value, weight):
            weight.copy_(value)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and same_bits(one.detach(), other.detach())


def _readable_ones(module: nn.Module) -> dict[str, nn.Parameter]:
    """Weights that have memory of their own here, and a counter that tells of writes."""
    return {
        name: p
        for name, p in module.named_parameters()
        if type(p) is nn.Parameter
        and p.layout is torch.strided
        and not (p.is_meta or p.is_inference() or p.is_quantized)
    }
