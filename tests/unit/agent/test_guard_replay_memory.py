"""A replay needs no more memory than the step that it repeats: no second set of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import profiler
from torch.nn.parallel import DistributedDataParallel

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


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("bucket_view", [True, False])
def test_under_ddp_a_replay_adds_nothing_with_bucket_views_and_one_set_of_gradients_without(
    bucket_view: bool,
) -> None:
    """At the replay the step's own gradients are there; its backward began without them."""
    torch.manual_seed(0)
    module = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])
    ddp, x = DistributedDataParallel(module, gradient_as_bucket_view=bucket_view), torch.randn(32, WIDTH)
    for _ in range(2):  # DDP's final buckets
        ddp.zero_grad(set_to_none=True)
        capture, evidence = original(ddp, x, loss_of)  # type: ignore[arg-type]
    ddp.zero_grad(set_to_none=True)
    step = peak(lambda: loss_of(ddp, x).backward())
    kept = 0 if bucket_view else sum(4 * p.numel() for p in module.parameters())  # above what the step found
    replay = peak(lambda: recompute(ddp, loss_of, capture, Depth.BITS, CPU))
    gradients = sum(4 * p.numel() for p in module.parameters())
    assert kept + replay <= step + (0 if bucket_view else gradients) + SLACK
    assert recompute(ddp, loss_of, capture, Depth.BITS, CPU).agrees(evidence)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Without autocast, whose casts would hide the gradients."""
    return model(x).pow(2).mean()
