"""Large tensors that are neither weights nor buffers, while something is computed that is no step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from training_agent import _kept
from training_agent._large import LargeTensors
from training_agent._surroundings import Surroundings


class Remembering(nn.Module):
    """A memory and a list of them, as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.more = torch.zeros(4, 8), [torch.zeros(4, 8)]
        self.table = torch.ones(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.memory[0] += x
        self.more[0].add_(1)
        return x + self.table[0]


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kept, "_LARGE", 16)


def test_what_the_first_block_writes_is_put_back_and_known() -> None:
    model = Remembering()
    around = Surroundings(model, ())
    with around.unchanged():
        model(torch.ones(8))
    assert not model.memory.any() and not model.more[0].any()
    assert around.large.written == {"memory of model 0", "more[0] of model 0"}
    assert not around.large.lost


def test_what_begins_to_be_written_later_ends_the_replay() -> None:
    model = Remembering()
    around = Surroundings(model, ())
    with around.unchanged():
        pass
    said = r"writes memory of model 0, more\[0\].*register_buffer"
    with pytest.raises(RuntimeError, match=said), around.unchanged():
        model(torch.ones(8))
    with around.unchanged():  # what only reads it is right again
        pass


def test_what_is_too_large_to_be_copied_once_is_known_to_be_lost() -> None:
    large = LargeTensors()
    huge = torch.zeros(1).expand(1 << 29)
    with large.watched({"memory": huge}):
        huge[0] = 1
    assert large.lost == {"memory"}
