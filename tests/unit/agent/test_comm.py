"""What a failing collective is taken for, on every torch that is supported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_agent._comm import Comm, name_of
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


def test_guards_of_a_job_have_names_of_their_own_and_the_first_over_all_ranks_has_none() -> None:
    """By them alone do alarms differ that name nobody at the same step; the same at the next start."""
    assert name_of((0, 1, 2, 3), world=4, serial=0) == ""
    groups = [(0, 1), (2, 3), (0, 2), (0, 1, 2, 3)]
    names = [name_of(ranks, 4, serial) for ranks in groups for serial in range(3)]
    assert len(set(names)) == len(names)
    assert names == [name_of(ranks, 4, serial) for ranks in groups for serial in range(3)]
    assert name_of(tuple(range(4, 16_384)), 16_384, 1) == "16380 ranks from 4 on (83723ff5), guard 2"
