"""Which parts of a model a layer audit takes one at a time. Pure.

Comes in: the wrapped module. Goes out: its blocks, in the module's own order, the same on every rank. Next:
`_layers` picks the one of a step, `_block_watch` records it, `checks.block` computes it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getattr_static

from torch import nn

from ._walk import modules

_LISTS = (nn.ModuleList, nn.Sequential)


@dataclass(frozen=True, slots=True)
class Block:
    """One unit: a module that is called once in a forward, as a decoder's layer is."""

    name: str  # path inside the wrapped module; "" is the wrapped module itself
    parameters: tuple[str, ...]  # its own, by path inside the block: what its gradients are compared of
    shared: tuple[str, ...] = ()  # those that something outside the block holds as well: not compared

    @property
    def title(self) -> str:
        """For people."""
        return f"block {self.name}" if self.name else "the model"


def blocks_of(root: nn.Module) -> tuple[Block, ...]:
    """Divide a model: down from the root through every holder of layers, and no further.

    A holder is a module that is never called itself, since it has no forward (ModuleList, ParameterList, a
    namespace), or that has inside it a ModuleList or Sequential with two children of one class. Where those
    children are leaves, as in a feed-forward of two Linear layers, a layer that is itself one of several in
    a list stays whole: a decoder is divided into its layers, not into their parts. A leaf without parameters
    (dropout, activation) is none.
    """
    found = [(name, unit) for name, unit in _units(root) if list(unit.parameters())]
    holders = Counter(key for _, unit in found for key in {id(p) for p in unit.parameters()})
    inside = {id(m) for _, unit in found for m in modules(unit)}
    outside = {
        id(p) for m in modules(root) if id(m) not in inside for p in m._parameters.values() if p is not None
    }
    return tuple(_block(name, unit, holders, outside) for name, unit in found)


def _block(name: str, unit: nn.Module, holders: Counter[int], outside: set[int]) -> Block:
    own: list[str] = []
    shared: list[str] = []
    for inner, p in unit.named_parameters():
        (shared if holders[id(p)] > 1 or id(p) in outside else own).append(inner)
    return Block(name, tuple(own), tuple(shared))


def _units(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    seen: set[int] = set()

    def visit(module: nn.Module, path: str, *, repeated: bool) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        if not _holds(module, repeated=repeated):
            yield path, module
            return
        layers = _alike(module)
        for name, child in module.named_children():
            yield from visit(child, f"{path}.{name}", repeated=type(child) in layers and _composed(child))

    if not root._modules:
        yield "", root
    for name, child in root.named_children():
        yield from visit(child, name, repeated=type(child) in _alike(root) and _composed(child))


def _holds(module: nn.Module, *, repeated: bool) -> bool:
    """Whether to look for blocks inside; `repeated`: it is one of several layers already."""
    own = getattr_static(type(module), "forward")  # a scripted module's has no value on its class
    if own is nn.Module.forward and "forward" not in vars(module):
        return True
    for inside in modules(module):
        layers = _alike(inside)
        if layers and (not repeated or any(type(m) in layers and _composed(m) for m in inside.children())):
            return True
    return False


def _alike(module: nn.Module) -> set[type]:
    """Classes of which a list has two members or more that carry weights."""
    if not isinstance(module, _LISTS):
        return set()
    kinds = Counter(type(m) for m in module._modules.values() if m is not None and _weighs(m))
    return {kind for kind, count in kinds.items() if count > 1}


def _weighs(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _composed(module: nn.Module) -> bool:
    return bool(module._modules)
