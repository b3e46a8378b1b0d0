"""Tensors beside weights and buffers that are too large to be copied for each replay, or to travel.

Comes in: those that `_surroundings` finds. Goes out: which of them a computation has written, and what they
held before the first one. Next: `_start` switches replays off, `guard` gives the replay up.

Buffers are of any size: a memory that a forward writes belongs into one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ._kept import same_bits

_TOGETHER = 1 << 30  # bytes of all; more of them are not copied once either


class LargeTensors:
    """Those of one training loop; names say where they are kept."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.lost: set[str] = set()  # of these, what was not put back
        self._looked = False

    @contextmanager
    def watched(self, found: Mapping[str, Tensor]) -> Iterator[None]:
        """A block that should write none of them; what the first block writes is put back.

        Raises:
            RuntimeError: a later one has written some.
        """
        first = not self._looked
        small = sum(t.numel() * t.element_size() for t in found.values()) <= _TOGETHER
        copies = {name: t.detach().clone() for name, t in found.items()} if first and small else {}
        versions = {name: t._version for name, t in found.items()}
        lost = set[str]()
        try:
            yield
        finally:
            for name, tensor in found.items():
                if name in copies:  # not every kernel that writes one raises its version counter
                    if not same_bits(tensor.detach(), copies[name]):
                        self.written.add(name)
                        with torch.no_grad():
                            tensor.copy_(copies[name])
                elif tensor._version != versions[name]:
                    lost.add(name)
            self.written |= lost
            self.lost |= lost
        self._looked = True
        if lost and not first:
            raise RuntimeError(written_in_passing(self.shown()))

    def shown(self) -> str:
        """Some of the written ones, for people; "" where there are none."""
        return ", ".join(sorted(self.written)[:3])


def written_in_passing(names: str) -> str:
    """A forward writes large tensors that are no buffers."""
    return (
        f"the model's forward writes {names}: no buffer, and too large to be put back or to travel. "
        "register_buffer(...) it"
    )
