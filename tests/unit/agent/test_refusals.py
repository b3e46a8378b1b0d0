"""What is refused in the middle of a loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from training_agent._refusals import refuse_forward, refuse_update
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
