"""Puts gradients and users' hooks aside while a whole forward and backward runs and is thrown away.

Comes in: the model's parameters. Goes out: a block in which they have no gradient and no post-accumulate hook
fires; afterwards everything is as before. Next: `_warm_up`, `checks.together`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ._block_graph import reached


@contextmanager
def put_aside(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Gradients and post-accumulate hooks of `tensors`; such a hook may apply an update."""
    gradients = [t.grad for t in tensors]
    hooks: list[Any] = [t._post_accumulate_grad_hooks for t in tensors]
    own = [dict(h) if h else {} for h in hooks]
    try:
        for tensor, h in zip(tensors, hooks, strict=True):
            tensor.grad = None
            if h:
                h.clear()
        yield
    finally:
        for tensor, gradient, h, kept in zip(tensors, gradients, hooks, own, strict=True):
            tensor.grad = gradient
            if h is not None:
                h.update(kept)


def other_leaves(outputs: Iterable[Tensor], own: Sequence[Tensor]) -> list[Tensor]:
    """What a backward from `outputs` leaves gradients in beside `own`: weights of a loss function, say."""
    known = {id(t) for t in own}
    leaves = (getattr(node, "variable", None) for node in reached(t.grad_fn for t in outputs))
    found = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor) and id(leaf) not in known}
    return list(found.values())


@contextmanager
def reducing(model: nn.Module) -> Iterator[None]:
    """A backward inside the block reduces gradients, also where the loop stands inside `no_sync()`."""
    with ExitStack() as stack:
        if isinstance(model, DistributedDataParallel):
            stack.callback(setattr, model, "require_backward_grad_sync", model.require_backward_grad_sync)
            model.require_backward_grad_sync = True
        else:
            for group in _sharded_groups(model):
                for flag in ("reduce_grads", "all_reduce_grads"):
                    stack.callback(setattr, group, flag, getattr(group, flag))
                    setattr(group, flag, True)
        yield


def _sharded_groups(model: nn.Module) -> list[Any]:
    """Where `set_requires_gradient_sync` and its kin keep their flags; torch has no way to read them."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[int, Any] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            several = getattr(state, "_fsdp_param_groups", None)
            groups = [state._fsdp_param_group] if several is None else several
            found |= {id(g): g for g in groups if g is not None}
    return list(found.values())


def reshard(model: nn.Module) -> None:
    """Give gathered weights back; without a backward nobody does, and the next forward would use old ones."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
