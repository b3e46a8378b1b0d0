"""Other tensors in the place of a model's own while a block runs: aliases of weights, copies of buffers.

Comes in: a model, and tensors by the names that its own have. Goes out: the block, in which every place that
held one of those holds the other; afterwards each holds what it held. Next: `checks` compute again in it.

`torch.func.functional_call` is not used: it goes by names, and of a module that a model holds under two of
them (one layer repeated, an embedding of encoder and decoder) it gives back the alias instead of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ._walk import modules

_Place = tuple[Any, str]  # a module's own table, and the key in it
_NOTHING: Any = object()


@contextmanager
def standing_in(root: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Run a block with `tensors` in the place of those that `root` has under their names, or of nothing.

    A tensor that several places hold, be they of one module or of many, is replaced in all of them.

    Raises:
        AttributeError: the model has no module to hold one of them.
    """
    held = _held(root)
    before: list[tuple[_Place, Any]] = []
    try:
        for name, tensor in tensors.items():
            table, key = _place(root, name)
            for where, inner in held.get(id(_content(table, key)), [(table, key)]):
                before.append(((where, inner), _content(where, inner)))
                where[inner] = tensor
        yield
    finally:
        for (table, key), tensor in reversed(before):
            if tensor is not _NOTHING:
                table[key] = tensor
            else:
                table.pop(key, None)


def _content(table: Any, key: str) -> Any:
    return table[key] if key in table else _NOTHING  # noqa: SIM401  # a scripted module's tables know no more


def copies_of(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For `standing_in`: what a forward writes goes into these."""
    return {name: buffer.clone() for name, buffer in buffers.items()}


def _held(root: nn.Module) -> dict[int, list[_Place]]:
    """Where each tensor lies, by its `id`."""
    found: dict[int, list[_Place]] = {}
    for module in modules(root):
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    found.setdefault(id(tensor), []).append((table, key))
    return found


def _place(root: nn.Module, name: str) -> _Place:
    path, _, key = name.rpartition(".")
    module = root.get_submodule(path)
    own: tuple[Any, ...] = (module._parameters, module._buffers)
    return next((table for table in own if key in table), vars(module)), key
