"""What a block is called with: whether it can be recorded by reference, and views in the place of its inputs.

Comes in: the arguments of a block. Goes out: the reason why not, or arguments whose gradients can be told
apart. Next: `_block_watch` records them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ._hooks import backward_hooks

# What no forward can change behind a capture's back.
_CONSTANT = (bool, int, float, complex, str, bytes, Enum, slice, range,
             torch.dtype, torch.device, torch.layout, torch.memory_format)  # fmt: skip


class Views:
    """Views that stand for a block's inputs, so that a gradient hook on one sees this block's part alone.

    Containers that the block may write to are handed on as they are, and so are leaves, which autocast knows
    by their identity: their gradients are not compared.
    """

    def __init__(self, on_gradient: Callable[[int, Tensor], None]) -> None:
        self._on_gradient = on_gradient
        self.made: dict[int, Tensor] = {}  # by the `id` of the input

    def of(self, value: Any) -> Any:
        """The value with views in it."""
        if type(value) is tuple:
            return tuple(self.of(v) for v in value)
        if not isinstance(value, Tensor) or not value.requires_grad or value.is_leaf:
            return value
        if id(value) not in self.made:
            view, number = value.view_as(value), len(self.made)
            view.register_hook(lambda gradient: self._on_gradient(number, gradient))  # type: ignore[no-untyped-call]
            self.made[id(value)] = view
        return self.made[id(value)]

    def nodes(self, arguments: Any) -> list[Any]:
        """The nodes of the graph at which the block ends: of its views, and of inputs without one."""
        found = [view.grad_fn for view in self.made.values()]
        given = [t for t in tree_leaves(arguments) if isinstance(t, Tensor) and id(t) not in self.made]
        return found + [t.grad_fn for t in given if t.grad_fn is not None]


def unfit(arguments: Any) -> str | None:
    """Why arguments cannot be recorded by reference."""
    for value in tree_leaves(arguments):
        if value is None or isinstance(value, _CONSTANT):
            continue
        if not isinstance(value, Tensor):
            return f"takes a {type(value).__name__}, which its forward may change"
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided:
            return f"takes a tensor of the kind {type(value).__name__}, {value.layout}"
    return None


def hooked(module: nn.Module) -> str | None:
    """Why gradients that pass through the module are not those of its forward alone."""
    return "has backward hooks of its own" if backward_hooks(module) else None
