"""The discarded pass of every start: a resumed run then sums gradients in the order of the run it continues.

Comes in: DDP, or what `fully_shard` holds, and a forward and backward. Goes out: DDP's buckets in their final
layout, everything else as before. Next: `guard` registers the node and compares weights, then the first step
is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from ._aside import other_leaves, put_aside, reducing
from ._capture import DeviceState, kept_rng
from ._walk import copied_buffers
from .checks.replay import output_tensors, seeded
from .determinism import deterministic, explained


def warm_up(
    model: nn.Module,
    device: torch.device,
    forward: Callable[[], Any],
    backward: Callable[[Any], None],
    *,
    strict: bool,
    forced: bool = False,
    inside: AbstractContextManager[None] | None = None,
) -> None:
    """Run a forward and backward and discard it: RNG, buffers, gradients and weights are put back.

    DDP lays its buckets out anew after the first backward, so a resumed run would sum its first step in
    another order than the run it continues. With `strict`, an operator without a deterministic kernel shows
    here, before the first update; `forced`: every step is to run those. `inside`: a block that the
    passes run in, such as one that puts weights back.

    Raises:
        ConfigurationError: an operator has no deterministic kernel.
    """
    parameters = list(model.parameters())
    buffers = copied_buffers(model)
    # With static_graph DDP only counts hooks in its first backward and orders buckets by the second.
    passes = 2 if getattr(model, "static_graph", False) else 1
    try:
        with (
            put_aside(parameters),
            reducing(model),
            kept_rng(device),
            explained(strict, forced=forced),
            deterministic(strict, attention=forced),
            inside or nullcontext(),
        ):
            for _ in range(passes):
                output = forward()
                with put_aside(other_leaves(output_tensors(output), parameters)):
                    backward(output)
                for p in parameters:
                    p.grad = None
    finally:
        torch.clear_autocast_cache()  # it holds casts whose graph is gone
        # One that the forward made, or made larger (a table of positions), stays: its layer remembers it.
        DeviceState.write_buffers(model, buffers)


def backward_from_outputs(output: Any) -> None:
    """A backward without a loss function, good enough to be thrown away."""
    roots = seeded(output)
    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
