"""Which tensors have bytes of their own to be read, and so can be digested and compared.

Comes in: tensors of a program. Goes out: whether each can be read. Next: `_evidence` and `_watch` leave the
others alone, `digest` refuses them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def readable(tensor: Tensor) -> bool:
    """Whether it lies in memory here: not sparse, nested or meta, and its storage was not given back."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return False
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # it stands for another one, as inside torch.func.grad
        return False


def readable_ones(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that can be read."""
    return [t for t in tensors if readable(t)]


def kind_of(tensor: Tensor) -> str:
    """What it is instead, for people."""
    if tensor.is_nested:
        return "a nested tensor"
    return f"{tensor.layout} on {tensor.device}"
