"""Users' hooks around the model: which of them a replay runs, and in which order.

Comes in: modules as they are at this step. Goes out: the guard's own hooks in their places; a sentence where
users' hooks lie outside of what is replayed. Next: `_watch` skips such audits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.utils import _to_kwargs

from ._capture import Unit
from ._refusals import kept_out

_GUARDED: WeakSet[nn.Module] = WeakSet()


def guarded(module: nn.Module) -> bool:
    """Whether a guard's hooks are on this very module (a copy of it has none)."""
    return module in _GUARDED


class ModelHooks:
    """The guard's own on the model, until `remove`."""

    def __init__(
        self,
        module: nn.Module,
        outer: nn.Module,
        entering: Callable[..., Any],
        leaving: Callable[..., Any],
        beginning: Callable[..., Any],
    ) -> None:
        """`entering` and `leaving`: the forward of `module`; `beginning`: that of `outer`, DDP around it."""
        self._module, self._outer = module, outer
        _GUARDED.add(module)
        self._leave = module.register_forward_hook(kept_out(_only(module, leaving)))
        enter, begin = kept_out(_only(module, entering)), kept_out(_only(outer, beginning))
        # The users' own come behind it: a replay begins with what it captured, and runs them as well.
        self._enter = module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
        # What a start computes must end before `fully_shard` gathers weights.
        together = outer is module
        self._begin = outer.register_forward_pre_hook(begin, with_kwargs=True, prepend=together)

    def outside(self, unit: Unit) -> str | None:
        """Why a replay of `unit`, which begins, is another computation than the step, as far as hooks go."""
        module, outer = self._module, self._outer
        if outer is module:
            return None
        if self._leave.id not in module._forward_hooks or self._enter.id not in module._forward_pre_hooks:
            return "the guard's own hooks were taken away from the model"
        if next(reversed(module._forward_hooks)) != self._leave.id:  # it is to see what they make of outputs
            module._forward_hooks[self._leave.id] = module._forward_hooks.pop(self._leave.id)
        if next(iter(module._forward_pre_hooks)) != self._enter.id:
            others = dict(module._forward_pre_hooks)
            own = others.pop(self._enter.id)
            module._forward_pre_hooks.clear()
            module._forward_pre_hooks.update({self._enter.id: own, **others})
            if unit is Unit.MODULE:
                return "a forward pre-hook of the model was put in front of the guard's"
        if unit is Unit.MODULE:
            why = "the model has backward hooks of its own, which a replay would run twice: pass compute_loss"
            return why if backward_hooks(module) else None
        if outer._backward_hooks or outer._backward_pre_hooks:
            return f"{type(outer).__name__} has backward hooks, which no replay runs: put them on its module"
        return None

    def remove(self) -> None:
        """Take them away."""
        for handle in (self._leave, self._enter, self._begin):
            handle.remove()
        _GUARDED.discard(self._module)


def _only(module: nn.Module, hook: Callable[..., Any]) -> Callable[..., Any]:
    """For calls of this very module: a copy of it (`deepcopy`, for an average) has the hook as well."""

    def own(called: nn.Module, *args: Any) -> Any:
        return hook(called, *args) if called is module else None

    return own


def backward_hooks(module: nn.Module) -> bool:
    """Whether gradients that pass through the module are not those of its forward alone."""
    everywhere: Any = torch.nn.modules.module
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or everywhere._global_backward_hooks
        or everywhere._global_backward_pre_hooks
    )


def called_with_hooks(outer: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `module` in place of `outer`, with the forward hooks that `outer` has (the guard's do nothing).

    DDP with `device_ids` brings its arguments to its GPU; so does this.
    """
    for key, hook in list(getattr(outer, "_forward_pre_hooks", {}).items()):
        if key in outer._forward_pre_hooks_with_kwargs:
            args, kwargs = hook(outer, args, kwargs) or (args, kwargs)
            continue
        new = hook(outer, args)
        if new is not None:
            args = new if isinstance(new, tuple) else (new,)
    ids = getattr(outer, "device_ids", None)
    if ids:
        moved = _to_kwargs(args, kwargs, torch.device(outer.device_type, ids[0]), False)
        (args,), (kwargs,) = moved
    result = module(*args, **kwargs)
    for key, hook in list(getattr(outer, "_forward_hooks", {}).items()):
        more = (args, kwargs) if key in outer._forward_hooks_with_kwargs else (args,)
        new = hook(outer, *more, result)
        result = result if new is None else new
    return result
