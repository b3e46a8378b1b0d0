"""Moments that are no plain tensors: those of 8-bit optimizers wrap codes and scales."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from training_agent._optimizer_state import STATE, state_tensors
from training_agent.digest import digest


def test_of_moments_that_wrap_other_tensors_those_are_compared() -> None:
    """The wrapper itself has no memory: its address is 0, and a digest of it ended the process."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight]["exp_avg"] = TwoTensor(torch.ones(2), torch.zeros(2))
    optimizer.state[weight]["rows"] = torch.eye(2).to_sparse()
    found = state_tensors([optimizer], {"w": weight})
    assert list(found) == [f"{STATE}exp_avg.a of w", f"{STATE}exp_avg.b of w"]
    assert digest(list(found.values())).shape == (2, 3)
