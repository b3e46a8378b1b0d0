"""What a program keeps beside parameters goes where a replay needs it, and afterwards is what it was."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from training_agent._kept import ABSENT, Gone, copied, print_of
from training_agent._packing import pack, unpack
from training_agent._surroundings import Surroundings


class Meter:
    """An object of the user's."""

    def __init__(self) -> None:
        self.mean, self.seen = 0.0, [torch.zeros(2)]


class Layer(nn.Module):
    """Keeps a factor, a pair, a state, a generator, a history, an object, and something that nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.pair, self.state, self.opaque = 1.5, (1, "a"), torch.zeros(2), object()
        self.generator, self.history, self.meter = torch.Generator().manual_seed(1), {"a": [1]}, Meter()
        self.drop = nn.Dropout(0.1)

    def work(self) -> None:
        """Changes all of it, in place and by new values."""
        self.factor += 1
        self.pair = (2, "b")
        self.state += 1
        self.opaque, self.late = object(), 3
        self.history["a"].append(2)
        self.history["b"] = []
        self.meter.mean, self.meter.seen = 0.5, [*self.meter.seen, torch.ones(2)]
        self.meter.seen[0] += 1
        torch.rand((), generator=self.generator)
        random.random()
        np.random.random()


def state_of(layer: Layer) -> list[Any]:
    kept = [layer.factor, layer.pair, layer.state.tolist(), id(layer.state), id(layer.opaque)]
    kept += [repr(layer.history), layer.meter.mean, repr(layer.meter.seen), "late" in vars(layer)]
    kept += [layer.generator.get_state().tolist(), random.getstate(), repr(np.random.get_state())]
    return kept


def test_everything_that_a_computation_changes_comes_back_when_it_fails_too() -> None:
    layer = Layer()
    before = state_of(layer)
    with pytest.raises(ValueError, match="inside"), Surroundings(layer, ()).unchanged():
        layer.work()
        assert state_of(layer) != before
        raise ValueError("inside")
    assert state_of(layer) == before


def test_values_of_another_rank_are_in_their_places_inside_the_block_only() -> None:
    mine, theirs = Layer(), Layer()
    mine.aside = Meter()  # on this rank only
    theirs.drop.p = 0.5
    theirs.work()
    kept, generator = Surroundings(theirs, ()).kept(), mine.generator
    drawn, drawn_by_numpy = random.random(), np.random.random()
    before = state_of(mine)
    with Surroundings(mine, ()).unchanged(kept):
        assert (mine.factor, mine.pair, mine.state.tolist()) == (2.5, (2, "b"), [1.0, 1.0])
        assert mine.history == {"a": [1, 2], "b": []}
        assert (mine.drop.p, mine.aside.mean) == (0.5, 0.0)
        assert [t.tolist() for t in mine.meter.seen] == [[1.0, 1.0], [1.0, 1.0]]
        assert mine.generator is generator
        assert torch.equal(mine.generator.get_state(), theirs.generator.get_state())
        assert (random.random(), np.random.random()) == (drawn, drawn_by_numpy)
    assert state_of(mine) == before


def test_a_name_that_another_rank_has_not_is_taken_away_inside_the_block_only() -> None:
    class Scaled(Layer):
        scale = 1.0

    ours, theirs = Scaled(), Scaled()
    ours.scale = 2.0  # type: ignore[assignment]
    key = ("model 0", "scale")
    here, there = Surroundings(ours, ()), Surroundings(theirs, ())
    assert key in here.kept() and there.lacking([key, ("model 0", "opaque"), ("nowhere", "x")]) == {key}
    gone = unpack(pack(Gone.GONE, torch.device("cpu")), torch.device("cpu"))
    with here.unchanged({key: gone}):
        assert ours.scale == 1.0 and "scale" not in vars(ours)
    assert vars(ours)["scale"] == 2.0
    with there.unchanged({key: gone}):
        assert theirs.scale == 1.0


@pytest.mark.parametrize("length", [500, 600, 5000])
@pytest.mark.parametrize(
    "kind", [list, tuple, set, lambda v: deque(v, 4500), lambda v: {str(i): x for i, x in enumerate(v)}]
)
def test_a_history_comes_back_and_travels_however_long_it_has_become(kind: Any, length: int) -> None:
    layer = Layer()
    layer.history = kind(float(i) for i in range(length))  # type: ignore[assignment]
    value, before = layer.history, copied(layer.history)
    around = Surroundings(layer, ())
    assert around.kept()["model 0", "history"] == before
    with around.unchanged():
        if isinstance(value, dict):
            value["0"] = 7.0
        elif isinstance(value, set):
            value.add(-1.0)
        elif isinstance(value, tuple):
            layer.history = ()  # type: ignore[assignment]
        else:
            value.append(7.0)
            value[0] = 3.0
    assert layer.history is value and value == before
    if isinstance(value, deque):
        assert before.maxlen == value.maxlen


def test_parts_that_a_forward_takes_turns_with_are_what_they_were() -> None:
    layer = Layer()
    layer.other, layer.turn = nn.Dropout(0.2), layer.drop
    around = Surroundings(layer, ())
    with around.unchanged():
        layer.turn, layer.made = layer.other, nn.Dropout(0.3)
    assert layer.turn is layer.drop and list(layer._modules) == ["drop", "other", "turn", "made"]
    assert not any("parts" in place for place, _ in around.kept())


def test_what_cannot_be_shipped_is_left_out() -> None:
    for value in (object(), [object()], {object(): 1}, nn.Parameter(torch.ones(1))):
        assert copied(value) is ABSENT
    for many in ([torch.zeros(1)] * 600, [0.0] * (1 << 18)):  # data
        assert copied(many) is ABSENT
    graph = torch.ones(1, requires_grad=True) * 2
    assert copied(graph) is ABSENT
    assert copied(deque([1, 2], 2)) == deque([1, 2], 2)


def test_equal_values_print_alike_and_others_do_not() -> None:
    same = ({"a": torch.ones(2), "b": [1.5]}, {"a": torch.ones(2), "b": [1.5]})
    assert print_of(same[0]) == print_of(same[1])
    others = [torch.ones(2), torch.ones(2).double(), torch.ones(1, 2), torch.tensor([1.0, 1.5]), [1], (1,), 1]
    assert len({print_of(value) for value in others}) == len(others)


class Criterion(nn.Module):
    """A loss function with a buffer and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.center += x.detach()
        self.calls += 1
        return (x - self.center).sum()  # type: ignore[operator]


_CRITERION, _calls = Criterion(), 0


def named_among_globals(x: Tensor) -> Tensor:
    global _calls
    _calls += 1
    return helped(x)


def helped(x: Tensor) -> Tensor:
    return _CRITERION(x)


def test_of_a_loss_function_its_closure_its_object_and_the_globals_that_it_names_come_back() -> None:
    criterion, meter, count = Criterion(), Meter(), 0

    def closed(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        meter.mean += 1
        return criterion(x)

    class Trainer:
        """Its method is the loss function."""

        def __init__(self) -> None:
            self.criterion, self.steps = Criterion(), 0

        def loss(self, x: Tensor) -> Tensor:
            self.steps += 1
            return self.criterion(x)

    trainer = Trainer()
    for loss in (closed, trainer.loss, named_among_globals):
        with Surroundings(nn.Linear(1, 1), (loss,)).unchanged():
            loss(torch.ones(2))
    assert (count, meter.mean, trainer.steps, _calls) == (0, 0.0, 0, 0)
    for module in (criterion, trainer.criterion, _CRITERION):
        assert (module.calls, module.center.tolist()) == (0, [0.0, 0.0])


def test_weights_that_parametrize_caches_are_not_those_of_a_discarded_computation() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    with parametrize.cached():
        with Surroundings(layer, ()).unchanged():
            discarded = layer.weight
        assert layer.weight is not discarded
        assert layer.weight is layer.weight
