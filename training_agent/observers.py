"""Hooks that only watch, and must not see what the agent computes on its own account.

Comes in: a hook of the user. Goes out: one that is silent in warm-up, replay and arbitration. Hooks that are
not marked run there too: what they return, change or keep may be part of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

_quiet = False


def observer(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a hook that changes nothing which forward or backward use: counters, logs, statistics.

    Parameters
    ----------
    hook: any hook of a module or tensor for which None means "unchanged".

    Returns
    -------
    The hook to register; it is called once for each computation of the training loop.
    """

    @wraps(hook)
    def watching(*args: Any, **kwargs: Any) -> Any:
        return None if _quiet else hook(*args, **kwargs)

    return watching


@contextmanager
def quiet(on: bool) -> Iterator[None]:
    """Silence observers inside the block."""
    global _quiet  # autograd's own threads must see it as well
    before, _quiet = _quiet, on
    try:
        yield
    finally:
        _quiet = before
