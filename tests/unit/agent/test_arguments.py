"""Arguments: what the user's code does to its own stays its own."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training_agent._arguments import discarded, with_containers_of_its_own

CPU = torch.device("cpu")


@dataclass
class Batch:
    """One of a user's."""

    x: Tensor
    more: dict[str, Any]


def test_containers_are_new_and_tensors_are_not() -> None:
    x = torch.ones(2)
    made = (Batch(x, {"y": x}), {"a": [x]}, UserDict(a=x), OrderedDict(a=(x, 1)))
    batch, plain, wrapped, ordered = with_containers_of_its_own(made)
    del batch.more["y"], plain["a"][0], wrapped["a"], ordered["a"]
    batch.x = None
    assert made[0].more["y"] is made[1]["a"][0] is made[2]["a"] is made[0].x is x
    assert made[3]["a"][0] is x and type(ordered) is OrderedDict and type(batch) is Batch


def test_a_discarded_call_writes_into_no_input() -> None:
    x, leaf = torch.arange(6.0).view(2, 3).t(), torch.ones(1, requires_grad=True)
    strides = []

    def call(batch: dict[str, Tensor]) -> None:
        strides.append(batch["x"].stride())
        batch.pop("x").mul_(2)
        batch["leaf"].sum().backward()

    run = discarded(call, ({"x": x, "leaf": leaf},), {}, CPU)
    run()
    run()
    assert strides == [x.stride()] * 2
    assert x.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] and leaf.grad is None
