"""What is used inside and outside of a block at once is found in the graph, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training_agent._block_graph import used_outside


class Traced:
    """A block of two layers between two others, and the nodes that a layer audit keeps."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.before, self.after = nn.Linear(3, 3), nn.Linear(3, 3)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def found(self, more: Callable[[Traced, Tensor], Tensor], *, foreign: Collection[Any] = ()) -> str:
        """`more` is added to the loss; it gets the block's inner value."""
        x = self.before(torch.ones(2, 3))
        view = x.view_as(x)
        inner = torch.tanh(self.first(view))
        out = self.second(inner) + view
        loss = self.after(out).sum() + x.sum() + more(self, inner)
        loss.backward()  # the structure outlives it
        ids = {id(p) for p in foreign}
        return used_outside([loss.grad_fn], [(out.grad_fn, out.output_nr)], {view.grad_fn}, ids)


def nothing(_net: Traced, inner: Tensor) -> Tensor:
    return torch.zeros(())


def test_a_block_of_its_own_is_none() -> None:
    assert Traced().found(nothing) == ""


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (lambda net, inner: inner.sum(), "TanhBackward"),
        (lambda net, inner: net.first.weight.sum(), "AccumulateGrad"),
        (lambda net, inner: net.second(torch.ones(1, 3)).sum(), "AccumulateGrad"),
    ],
)
def test_an_inner_value_or_weight_in_the_loss_is_named(more: Any, what: str) -> None:
    assert what in Traced().found(more)


def test_weights_of_other_blocks_are_no_leak() -> None:
    net = Traced()
    assert net.found(lambda net, inner: net.first.weight.sum(), foreign=[net.first.weight]) == ""


def test_the_cast_of_a_shared_weight_is_none_either() -> None:
    """Autocast casts a weight once for all its uses."""
    net = Traced()
    with torch.autocast("cpu", torch.bfloat16):
        again = net.found(lambda net, _: net.first(torch.ones(1, 3)).sum(), foreign=[net.first.weight])
        assert "AccumulateGrad" in again or "ToCopy" in again  # the bias
        shared = list(net.first.parameters())
        assert net.found(lambda net, _: net.first(torch.ones(1, 3)).sum(), foreign=shared) == ""


def test_an_output_that_is_the_input_is_none() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    view = x.view_as(x)
    loss = (view * 2).sum()
    assert used_outside([loss.grad_fn], [(view.grad_fn, 0)], {view.grad_fn}, set()) == ""
