"""What a forward is called with, so that neither the user's code nor a replay changes it for the other.

Comes in: arguments. Goes out: the same in containers of their own (a loss function takes "labels" out of its
batch), or all of it once more, tensors as they lie in memory included (a forward scales its input in place).
Next: `_watch` captures, the warm-up and the preflight compute on copies.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from ._packing import PACK_ERRORS, pack, unpack
from .errors import ConfigurationError


def with_containers_of_its_own(value: Any) -> Any:
    """The value with the same tensors in new dictionaries, lists and batch objects."""
    if type(value) in (tuple, list):
        return type(value)(map(with_containers_of_its_own, value))
    if isinstance(value, (dict, list, UserDict)) or (is_dataclass(value) and not isinstance(value, type)):
        with suppress(Exception):  # a class that cannot be copied is handed on as it is
            return _refilled(copy.copy(value))
    return value


def _refilled(value: Any) -> Any:
    if isinstance(value, (dict, UserDict)):
        for key in value:
            value[key] = with_containers_of_its_own(value[key])
    elif isinstance(value, list):
        value[:] = map(with_containers_of_its_own, value)
    else:
        for name, inner in vars(value).items():
            object.__setattr__(value, name, with_containers_of_its_own(inner))
    return value


def once_more(value: Any, device: torch.device) -> Any:
    """A copy for a computation that is thrown away; what cannot be copied is shared."""
    value = with_containers_of_its_own(value)
    if any(isinstance(leaf, nn.Module) for leaf in tree_leaves(value)):
        return value
    try:
        with _disable_current_modes():  # the preflight lists the operators of the model, and not these
            return unpack(pack(value, device), device)
    except PACK_ERRORS:
        return value


def discarded(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> Callable[[], Any]:
    """`call` on copies of these arguments, other ones each time."""

    def run() -> Any:
        own, named = once_more((args, kwargs), device)
        return call(*own, **named)

    return run


def refuse_iterators(arguments: Any) -> None:
    """Refuse what gives another batch at each call.

    Raises:
        ConfigurationError: on every rank alike.
    """
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Iterator):
            raise ConfigurationError(
                f"guard.compute_loss() got a {type(leaf).__name__}: a replay would take the next batch out "
                "of it. Call next() in the loop and pass the batch."
            )
