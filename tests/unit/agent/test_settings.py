"""What modules keep beside tensors goes where a replay needs it, and comes back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training_agent._kept import kept, putting


class Layer(nn.Module):
    """Keeps a factor, a pair, a tensor and an object."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.pair, self.table, self.object = 1.5, (1, "a"), torch.ones(2), object()
        self.drop = nn.Dropout(0.1)


def test_plain_values_are_kept_and_nothing_of_torchs_own() -> None:
    assert kept(Layer()) == {
        (0, "factor"): 1.5,
        (0, "pair"): (1, "a"),
        (1, "p"): 0.1,
        (1, "inplace"): False,
    }


def test_they_are_put_back_when_the_block_fails_too() -> None:
    layer = Layer()
    before = kept(layer)
    with pytest.raises(ValueError, match="inside"), putting(layer, {(1, "p"): 0.5, (0, "late"): 3}):
        assert (layer.drop.p, vars(layer)["late"]) == (0.5, 3)
        raise ValueError("inside")
    assert kept(layer) == before
