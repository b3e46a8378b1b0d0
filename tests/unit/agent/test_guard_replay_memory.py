"""A replay needs no more memory than the step that it repeats: no second set of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import profiler

from tests.unit.agent.test_guard_replay import CPU, Wrapped, original
from training_agent._evidence import Depth
from training_agent.checks.replay import recompute

WIDTH, LAYERS = 256, 6
SLACK = 16 * 1024  # bytes: digests, generator states, and what Python's hooks hold


def peak(action: Callable[[], Any]) -> int:
    """Most bytes that tensors took at once, above what was there before."""
    with profiler.profile(profile_memory=True) as profile:
        action()
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def test_the_peak_of_a_replay_is_that_of_the_step_with_gradients_in_place() -> None:
    """As with `gradient_as_bucket_view`: gradients stay where they are, and each new one is added to them."""
    torch.manual_seed(0)
    module = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    ddp, x = Wrapped(module), torch.randn(32, WIDTH)
    capture, evidence = original(ddp, x, loss_of)
    step = peak(lambda: loss_of(ddp, x).backward())
    replay = peak(lambda: recompute(ddp, loss_of, capture, Depth.BITS, CPU))
    one_gradient, all_gradients = 4 * WIDTH * WIDTH, sum(4 * p.numel() for p in module.parameters())
    assert one_gradient < step < all_gradients
    assert replay <= step + SLACK
    assert recompute(ddp, loss_of, capture, Depth.BITS, CPU).agrees(evidence)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Without autocast, whose casts would hide the gradients."""
    return model(x).pow(2).mean()
