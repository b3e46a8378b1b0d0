"""The fast walk gives what torch's generators give, in their order."""

from __future__ import annotations

import torch
from torch import nn

from training_agent._walk import modules, named_buffers


class Odd(nn.Module):
    """A shared child, a shared buffer, places that are None, a buffer at the root."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
        self.nothing = None
        self.register_module("empty", None)
        self.second = nn.ModuleDict({"again": self.first, "own": nn.BatchNorm1d(2)})
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("absent", None)
        self.second["own"].register_buffer("mask", self.mask)


def test_modules_and_buffers_come_once_in_torchs_order() -> None:
    model = Odd()
    assert list(map(id, modules(model))) == list(map(id, model.modules()))
    assert list(named_buffers(model)) == [name for name, _ in model.named_buffers()]
    assert all(b is model.get_buffer(name) for name, b in named_buffers(model).items())
