"""What a failing collective is taken for, on every torch that is supported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_agent._comm import Comm
from training_agent.errors import PeerLostError


@pytest.mark.parametrize("gone", [(), ("AcceleratorError",), ("AcceleratorError", "OutOfMemoryError")])
def test_a_lost_peer_and_an_own_error_are_told_apart_on_older_torch_too(
    gone: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.4 has neither name: naming them in an `except` would end the job with an AttributeError."""
    for name in gone:
        monkeypatch.delattr(torch, name)
    rank: Any = SimpleNamespace(rank=0)
    with pytest.raises(PeerLostError, match="Nobody is suspected"), Comm.peers(rank, "testing"):
        raise RuntimeError("Connection closed by peer")
    with pytest.raises(torch.cuda.OutOfMemoryError), Comm.peers(rank, "testing"):
        raise torch.cuda.OutOfMemoryError("no memory")
