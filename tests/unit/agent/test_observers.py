"""Hooks that only watch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training_agent.observers import observer, quiet


def test_an_observer_is_silent_in_quiet_blocks_only_and_changes_nothing() -> None:
    seen: list[int] = []

    @observer
    def watching(_module: nn.Module, _args: tuple[Tensor], _output: Tensor) -> None:
        seen.append(len(seen))

    layer = nn.Linear(2, 2)
    layer.register_forward_hook(watching)
    x = torch.ones(1, 2)
    loud = layer(x)
    with quiet(True):
        assert torch.equal(layer(x), loud)
        with quiet(False):
            layer(x)
    layer(x)
    assert len(seen) == 3
    assert watching.__name__ == "watching"


def test_a_block_that_fails_ends_the_silence() -> None:
    heard: list[int] = []
    hook = observer(lambda: heard.append(1))
    try:
        with quiet(True):
            raise ValueError
    except ValueError:
        hook()
    assert heard == [1]
