"""The discarded pass of every start: a resumed run then sums gradients in the order of the run it continues.

Comes in: DDP and a forward and backward. Goes out: DDP's buckets in their final layout, everything else as
before. Next: `guard` registers the node and compares weights, then the first step is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ._capture import kept_rng
from .checks.replay import output_tensors
from .determinism import deterministic
from .errors import ConfigurationError


def warm_up(
    ddp: DistributedDataParallel,
    device: torch.device,
    forward: Callable[[], Any],
    backward: Callable[[Any], None],
    *,
    strict: bool,
) -> None:
    """Run a forward and backward through DDP and discard it: RNG, buffers and gradients are put back.

    DDP lays its buckets out anew after the first backward, so a resumed run would sum its first step in
    another order than the run it continues. With `strict`, an operator without a deterministic kernel shows
    here, before the first update.

    Raises:
        ConfigurationError: an operator has no deterministic kernel.
    """
    parameters = list(ddp.parameters())
    gradients = [p.grad for p in parameters]
    buffers = [b.detach().clone() for b in ddp.buffers()]
    hooks = [p._post_accumulate_grad_hooks for p in parameters]
    muted = [dict(h) if h else {} for h in hooks]
    sync = ddp.require_backward_grad_sync
    try:
        ddp.require_backward_grad_sync = True  # the first forward may stand inside no_sync()
        for p, h in zip(parameters, hooks, strict=True):
            p.grad = None
            if h:
                h.clear()  # a user's hook may apply an update
        with kept_rng(device), deterministic() if strict else nullcontext():
            # With static_graph DDP only counts hooks in its first backward and orders buckets by the second.
            for _ in range(2 if ddp.static_graph else 1):
                backward(forward())
                for p in parameters:
                    p.grad = None
    except RuntimeError as e:
        if "deterministic" in str(e):
            raise ConfigurationError(
                f"The model cannot be audited: {e} Use another operator, or Schedule(audit_every=None)."
            ) from e
        raise
    finally:
        ddp.require_backward_grad_sync = sync
        torch.clear_autocast_cache()  # it holds casts whose graph is gone
        for p, grad, h, own in zip(parameters, gradients, hooks, muted, strict=True):
            p.grad = grad
            if h is not None:
                h.update(own)
        with torch.no_grad():
            for buffer, saved in zip(ddp.buffers(), buffers, strict=True):
                buffer.copy_(saved)


def backward_from_outputs(output: Any) -> None:
    """A backward without a loss function, good enough to be thrown away."""
    roots = [t for t in output_tensors(output) if t.requires_grad]
    torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
