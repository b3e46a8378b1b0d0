"""Each place and each persistence: what is hit and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training_agent._phase import Phase
from training_agent.errors import ConfigurationError
from training_agent.faults import (
    REPLAYS,
    Element,
    FaultSpec,
    Flip,
    Injection,
    Noise,
    Persistence,
    Value,
    Where,
)


class Net(nn.Module):
    """Two layers; `down` is struck."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Bench:
    """A model, an optimizer and a clock."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.step, self.phase = 1, Phase.TRAINING
        self.x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))

    @contextmanager
    def struck(self, where: Where, shape: Any = None, rank: int = 0, **more: Any) -> Iterator[Injection]:
        """The fault, with its hooks taken off at the end."""
        spec = FaultSpec(where, shape or Element(1000.0), 0, **more)
        fault = Injection(
            spec,
            rank=rank,
            step=lambda: self.step,
            phase=lambda: self.phase,
            module=self.net.down,
            optimizer=self.optimizer,
        )
        try:
            yield fault
        finally:
            fault.close()

    def compute(self, loss: Any = lambda out: out.pow(2).mean()) -> dict[str, Tensor]:
        """Output, loss, gradients."""
        self.optimizer.zero_grad()
        out = self.net(self.x)
        value = loss(out)
        value.backward()
        found = {n: p.grad.clone() for n, p in self.net.named_parameters() if p.grad is not None}
        return found | {"out": out.detach(), "loss": value.detach()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> set[str]:
    return {name for name in a if not torch.equal(a[name], b[name])}


EVERY_GRADIENT = {"up.weight", "up.bias", "down.weight", "down.bias"}


@pytest.mark.parametrize(
    ("where", "hit"),
    [
        (Where.FORWARD_OUTPUT, EVERY_GRADIENT | {"out", "loss"}),
        (Where.INPUT_GRADIENT, {"up.weight", "up.bias"}),
        (Where.WEIGHT_GRADIENT, {"down.weight"}),
    ],
)
def test_place_reaches_what_hangs_on_it_and_nothing_else(where: Where, hit: set[str]) -> None:
    bench = Bench()
    healthy = bench.compute()
    with bench.struck(where) as fault:
        assert differing(bench.compute(), healthy) == hit
        assert fault.strikes == 1
    assert not differing(bench.compute(), healthy), "hooks are gone"
    with bench.struck(where, rank=1):
        assert not differing(bench.compute(), healthy), "another rank is healthy"


def test_loss_is_wrong_in_value_and_gradient() -> None:
    bench = Bench()
    healthy = bench.compute()
    with bench.struck(Where.LOSS, Element(1.7)) as fault:
        wrong = bench.compute(fault.loss(lambda out: out.pow(2).mean()))
    assert differing(wrong, healthy) == EVERY_GRADIENT | {"loss"}
    assert torch.allclose(wrong["down.bias"], 1.7 * healthy["down.bias"])


@pytest.mark.parametrize("where", [Where.WEIGHTS, Where.OPTIMIZER_STATE])
def test_stored_numbers_are_struck_after_the_update_of_the_step(where: Where) -> None:
    struck, healthy = Bench(), Bench()
    with struck.struck(where, Flip((22,)), step=2, persistence=Persistence.ONCE):
        for step in (1, 2, 3):
            for bench in (struck, healthy):
                bench.step = step
                bench.compute()
                bench.optimizer.step()
            moments = [b.optimizer.state[b.net.down.weight]["exp_avg"] for b in (struck, healthy)]
            weights = [b.net.down.weight for b in (struck, healthy)]
            if step == 1:
                assert torch.equal(*weights) and torch.equal(*moments)
            if step == 2:
                assert torch.equal(*weights) == (where is not Where.WEIGHTS)
                assert torch.equal(*moments) == (where is not Where.OPTIMIZER_STATE)


def test_loaded_weights_are_struck_on_request() -> None:
    bench = Bench()
    before = bench.net.down.weight.detach().clone()
    with bench.struck(Where.LOADED_CHECKPOINT, Flip((22,))) as fault:
        assert torch.equal(bench.net.down.weight, before)
        fault.after_load()
    assert (bench.net.down.weight != before).sum() == 1


def test_persistences_strike_as_often_as_they_say() -> None:
    bench = Bench()

    def steps(**more: Any) -> list[int]:
        hit = []
        with bench.struck(Where.FORWARD_OUTPUT, **more) as fault:
            for bench.step in range(1, 9):
                before = fault.strikes
                bench.net(bench.x)
                bench.net(bench.x)
                hit.append(fault.strikes - before)
        return hit

    assert steps(step=3) == [0, 0, 2, 2, 2, 2, 2, 2]
    assert steps(step=3, persistence=Persistence.ONCE) == [0, 0, 1, 0, 0, 0, 0, 0]
    assert steps(step=3, persistence=Persistence.EACH_NTH, nth=3) == [0, 0, 0, 1, 1, 0, 1, 1]
    top = float(bench.net.down(torch.relu(bench.net.up(bench.x))).detach().abs().max())
    above = {"shape": Noise(), "persistence": Persistence.ABOVE}
    assert sum(steps(magnitude=top, **above)) == 0
    assert sum(steps(magnitude=top / 2, **above)) == 16


def test_phases_limit_what_is_hit() -> None:
    bench = Bench()
    healthy = bench.compute()
    with bench.struck(Where.FORWARD_OUTPUT, phases=REPLAYS):
        for bench.phase in Phase:
            assert bool(differing(bench.compute(), healthy)) == (bench.phase in REPLAYS)


def test_exactly_the_chosen_bits_arrive() -> None:
    """A delta added in floating point would round them."""
    bench = Bench()
    layer_out: list[Tensor] = []
    healthy = bench.net.down(torch.relu(bench.net.up(bench.x))).detach()
    with bench.struck(Where.FORWARD_OUTPUT, Flip((31, 0))):
        layer_out.append(bench.net.down(torch.relu(bench.net.up(bench.x))).detach())
    words = (layer_out[0].view(torch.int32) ^ healthy.view(torch.int32)).flatten()
    assert [int(w) % 2**32 for w in words if w] == [1 << 31 | 1]


def test_no_flag_is_touched() -> None:
    bench = Bench()
    with bench.struck(Where.FORWARD_OUTPUT, Value(float("nan"))):
        vars_before = set(vars(bench.net.down)), set(vars(bench.optimizer))
        bench.compute()
        assert (set(vars(bench.net.down)), set(vars(bench.optimizer))) == vars_before


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FaultSpec(Where.LOSS, Element(), None), "one rank's own"),
        (lambda: FaultSpec(Where.LOSS, Element(), 0, nth=0), "from 1 on"),
        (lambda: FaultSpec(Where.LOSS, Element(), 0, step=-1), "steps count from 1"),
        (lambda: _inject(Where.FORWARD_OUTPUT), "needs a layer"),
        (lambda: _inject(Where.WEIGHTS, module=nn.Linear(2, 2)), "give optimizer="),
        (lambda: _inject(Where.WEIGHT_GRADIENT, module=nn.ReLU()), "ReLU holds no weight"),
        (lambda: _inject(Where.REDUCED_GRADIENT, module=nn.Linear(2, 2)), "give ddp="),
    ],
)
def test_what_cannot_be_injected_is_refused_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        make()


def test_layer_whose_input_needs_no_gradient_is_refused() -> None:
    fault = _inject(Where.INPUT_GRADIENT, module=(layer := nn.Linear(2, 2)))
    with pytest.raises(ConfigurationError, match="choose a layer further up"):
        layer(torch.randn(1, 2))
    with torch.no_grad():
        layer(torch.randn(1, 2))
    fault.close()


def _inject(where: Where, **objects: Any) -> Injection:
    return Injection(FaultSpec(where, Element(), 0), rank=0, step=lambda: 1, **objects)
