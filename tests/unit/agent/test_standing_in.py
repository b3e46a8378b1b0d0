"""What stands in for a model's tensors, and that everything is back afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from training_agent._standing_in import standing_in


class Net(nn.Module):
    """One layer under two names, two layers with one weight, a buffer that is not there yet."""

    late: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.first.weight
        self.register_buffer("late", None)
        self.register_buffer("average", torch.zeros(2))


def everything(net: nn.Module) -> list[tuple[str, int]]:
    parameters = net.named_parameters(remove_duplicate=False)
    return [(name, id(t)) for name, t in (*parameters, *net.named_buffers())]


def test_a_weight_is_replaced_wherever_it_lies_and_comes_back_everywhere() -> None:
    net = Net()
    before, other = everything(net), torch.ones(2, 2)
    with standing_in(net, {"first.weight": other}):
        assert all(layer.weight is other for layer in (net.first, net.second, net.tied))
    assert everything(net) == before
    assert isinstance(net.second.weight, nn.Parameter)


def test_what_the_block_writes_is_gone_after_an_error_too() -> None:
    net = Net()
    before = everything(net)
    with pytest.raises(RuntimeError), standing_in(net, {"average": torch.ones(2), "late": torch.ones(3)}):
        net.average = net.average * 2
        assert net.late is not None and net.late.shape == (3,)
        raise RuntimeError
    assert everything(net) == before
    assert net.late is None


def test_what_only_another_rank_has_stands_here_for_as_long() -> None:
    net = Net()
    with standing_in(net, {"first.table": torch.ones(3)}):
        assert net.second.table.shape == (3,)
    assert not hasattr(net.first, "table")


def test_a_part_that_the_model_has_not_is_an_error_and_nothing_stays() -> None:
    net = Net()
    before = everything(net)
    with (
        pytest.raises(AttributeError),
        standing_in(net, {"average": torch.ones(2), "gone.weight": torch.ones(2)}),
    ):
        pass
    assert everything(net) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_part_computes_with_what_stands_in() -> None:
    net = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), torch.jit.script(nn.BatchNorm1d(2)))
    before = everything(net)
    zeros = {name: torch.zeros_like(t) for name, t in net[0].named_parameters(prefix="0")}
    with standing_in(net, {**zeros, "1.running_mean": torch.full((2,), 7.0)}):
        assert not net[0](torch.ones(3, 2)).any()
        net(torch.ones(3, 2))
        assert float(net[1].running_mean[0]) != 7.0
    assert everything(net) == before
    assert not net[1].running_mean.any()
