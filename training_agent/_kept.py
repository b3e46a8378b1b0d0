"""What modules keep beside tensors (a factor, a dropout rate), and whether ranks keep other things.

Comes in: the wrapped module, at the begin of an audited step and when its replays mismatch. Goes out: values
that a capture takes along. Next: `_examine` has the step replayed with them.

A loop may set them by rank. Replayed with its own, peers that have the one value would agree with each other
against the healthy rank that has the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from torch import nn

from ._walk import modules

KeptValues = Mapping[tuple[int, str], Any]  # by the module's place in `modules()` and the attribute's name
_PLAIN = (bool, int, float, complex, str, bytes, Enum, type(None))
_TORCHS = frozenset(vars(nn.Module()))
_ABSENT = object()


def kept(module: nn.Module) -> dict[tuple[int, str], Any]:
    """Plain values in attributes, those of torch's own machinery left out."""
    return {
        (place, name): value
        for place, layer in enumerate(modules(module))
        for name, value in vars(layer).items()
        if name not in _TORCHS and _plain(value)
    }


@contextmanager
def putting(module: nn.Module, values: KeptValues | None) -> Iterator[None]:
    """Run a block with these values in their places; afterwards it is as before."""
    if not values:
        yield
        return
    layers = modules(module)
    before = {key: vars(layers[key[0]]).get(key[1], _ABSENT) for key in values}
    try:
        for (place, name), value in values.items():
            vars(layers[place])[name] = value
        yield
    finally:
        for (place, name), value in before.items():
            if value is _ABSENT:
                vars(layers[place]).pop(name, None)
            else:
                vars(layers[place])[name] = value


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if type(value) in (tuple, list) else isinstance(value, _PLAIN)
