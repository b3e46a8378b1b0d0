"""Where local gradients come to light: DDP's own parameters, or what `fully_shard` gathers for each use.

Comes in: the trained parameters. Goes out: calls with each gradient that enters a leaf of the graph, before
anything is reduced, and under `fully_shard` with the weights as they were gathered. Next: check 1 takes norms
(`checks.nonfinite`), audits digests (`_watch`, `checks.together`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .checks.sharded import is_sharded

Entering = Callable[[int, Tensor], None]  # which parameter, its gradient
Gathered = Callable[[Tensor], None]  # a whole parameter, about to be used in a forward
Stop = Callable[[], None]


def inside_backward() -> bool:
    """Whether a backward is running: activation checkpointing runs forwards in there."""
    return torch._C._current_graph_task_id() != -1


class Leaves(Protocol):
    """The leaves that gradients enter."""

    def watch(self, entering: Entering, gathered: Gathered | None = None) -> Stop:
        """Call `entering` with each gradient from now on, after the user's own tensor hooks."""

    def nbytes(self, row: int) -> int:
        """Size of one gradient of that parameter."""


class ParameterLeaves:
    """The parameters themselves: nothing is gathered."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = tuple(parameters.values())

    def watch(self, entering: Entering, gathered: Gathered | None = None) -> Stop:
        def hook(index: int) -> Callable[[Tensor], None]:
            return lambda gradient: entering(index, gradient)

        handles: list[RemovableHandle] = [
            p.register_hook(hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self._parameters)
            if p.requires_grad
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def nbytes(self, row: int) -> int:
        return _nbytes(self._parameters[row])


class _Watcher(NamedTuple):
    entering: Entering
    gathered: Gathered | None


class _Held(NamedTuple):
    owner: nn.Module
    name: str
    row: int | None  # None: not trained


class GatheredLeaves:
    """The whole parameters that `fully_shard` puts in the place of shards while a module runs.

    They come into being at the first forward and stay the same tensors; each gets one hook, once. Only what
    every module shows while it runs is used, and no communication hook is taken.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._watchers: list[_Watcher] = []
        self._hooked: dict[int, tuple[Tensor, RemovableHandle]] = {}  # by row
        rows = {name: i for i, name in enumerate(parameters)}
        self._handles = [
            module.register_forward_pre_hook(self._before(held))
            for module, held in _by_holder(model, rows).items()
        ]

    def watch(self, entering: Entering, gathered: Gathered | None = None) -> Stop:
        watcher = _Watcher(entering, gathered)
        self._watchers = [*self._watchers, watcher]

        def stop() -> None:
            self._watchers = [w for w in self._watchers if w is not watcher]

        return stop

    def nbytes(self, row: int) -> int:
        return _nbytes(self._hooked[row][0])

    def remove(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        for _, hook in self._hooked.values():
            hook.remove()
        self._watchers = []

    def _before(self, held: list[_Held]) -> Callable[[nn.Module, Any], None]:
        def hook(_module: nn.Module, _args: Any) -> None:
            for owner, name, row in held:
                leaf = owner._parameters[name]
                if leaf is None or is_sharded(leaf):
                    continue
                if row is not None:
                    self._hook_once(row, leaf)
                for watcher in self._watchers:
                    if watcher.gathered is not None:
                        watcher.gathered(leaf.detach())

        return hook

    def _hook_once(self, row: int, leaf: Tensor) -> None:
        known = self._hooked.get(row)
        if (known is not None and known[0] is leaf) or not leaf.requires_grad:
            return
        if known is not None:
            known[1].remove()

        def entering(gradient: Tensor) -> None:
            for watcher in self._watchers:
                watcher.entering(row, gradient)

        self._hooked[row] = leaf, leaf.register_hook(entering)  # type: ignore[no-untyped-call]


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _by_holder(model: nn.Module, rows: Mapping[str, int]) -> dict[nn.Module, list[_Held]]:
    """Per sharded module what it gathers; the parameters of sharded modules inside it are theirs."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[nn.Module, list[_Held]] = {}
    seen: set[int] = set()

    def visit(module: nn.Module, prefix: str, holder: nn.Module) -> None:
        if isinstance(module, FSDPModule):
            holder = module
        for name, p in module._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                found.setdefault(holder, []).append(_Held(module, name, rows.get(prefix + name)))
        for name, child in module.named_children():
            visit(child, f"{prefix}{name}.", holder)

    visit(model, "", model)
    return found
