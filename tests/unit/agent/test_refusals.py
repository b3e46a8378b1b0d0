"""What is refused in the middle of a loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from training_agent._refusals import refuse_forward, refuse_tensors, refuse_update
from training_agent.errors import ConfigurationError


@pytest.mark.parametrize(
    "refuse", [lambda: refuse_forward(nn.Linear(1, 1)), refuse_update], ids=["step", "update"]
)
def test_a_step_or_update_that_a_cuda_graph_records_is_refused(
    refuse: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played back, it runs without hooks: the loop would train on unguarded, and nobody would know."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    refuse()  # a build with CUDA on a machine without a GPU raises where it is asked
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ConfigurationError, match="CUDA graph"):
        refuse()


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    "weight",
    [torch.empty(2, device="meta"), TwoTensor(torch.ones(2), torch.ones(2))],
    ids=["meta", "wrapper"],
)
def test_a_parameter_without_bytes_of_its_own_is_refused_by_name(weight: torch.Tensor, frozen: bool) -> None:
    """Its address is 0: a digest of it would read there."""
    layer = nn.Linear(1, 1)
    layer.extra = nn.Parameter(weight, requires_grad=not frozen)
    trained = {name: p for name, p in layer.named_parameters() if p.requires_grad}
    with pytest.raises(ConfigurationError, match="extra"):
        refuse_tensors(layer, trained)
    del layer.extra
    refuse_tensors(layer, dict(layer.named_parameters()))
