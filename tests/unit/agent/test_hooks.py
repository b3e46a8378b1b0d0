"""The guard's hooks on a user's model stay out of its files and of its copies."""

from __future__ import annotations

import copy
import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from training_agent._hooks import ModelHooks
from training_agent.checks.replay import WithoutDdp


def test_a_guarded_module_can_be_saved_whole_and_copied_without_the_hooks() -> None:
    seen: list[str] = []

    def saw(what: str) -> Any:
        return lambda *_: seen.append(what)

    module = nn.Linear(2, 2)
    outer = nn.Sequential(module)
    hooks = ModelHooks(module, outer, saw("enter"), saw("leave"), saw("begin"))
    file = io.BytesIO()
    torch.save(outer, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(outer)):
        assert torch.equal(other(torch.ones(1, 2)), outer(torch.ones(1, 2)))
        assert seen == ["begin", "enter", "leave"]
        seen.clear()
    hooks.remove()


def test_a_replay_brings_a_batch_to_the_gpu_as_ddp_with_device_ids_does() -> None:
    """The loss function may hand DDP a batch in host memory. The meta device stands for the GPU."""
    layer = nn.Linear(2, 2, device="meta")
    ddp: Any = SimpleNamespace(module=layer, device_ids=[0], device_type="meta")
    batch = torch.ones(3, 2)
    assert WithoutDdp(ddp)(batch).device.type == "meta"
    assert WithoutDdp(ddp)(input=batch).device.type == "meta"
    assert batch.device.type == "cpu"
    ddp.device_ids = None
    with pytest.raises(RuntimeError):
        WithoutDdp(ddp)(batch)
