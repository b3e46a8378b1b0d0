"""What the end of a process may still ask the other ranks, and when they are not there to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training_agent._farewell import Farewell


@dataclass
class Step:
    """An update of which this rank has seen so many forwards and backwards; its gradients are NaN."""

    forwards: int
    backwards: int
    sharding: Any = None
    reduced: bool = True
    deferred: bool = False
    others_come: bool = True
    ledger: Any = field(default_factory=lambda: SimpleNamespace(step=4))
    judged: list[str] = field(default_factory=list)

    @property
    def watch(self) -> Any:
        return SimpleNamespace(open=True, batches=[None] * self.forwards)

    @property
    def norms(self) -> Any:
        return SimpleNamespace(backwards=self.backwards, left_nonfinite=lambda: True)

    @property
    def setup(self) -> Any:
        outer = SimpleNamespace(require_forward_param_sync=self.reduced)
        cpu = torch.device("cpu")
        comm = SimpleNamespace(meet=lambda key, timeout: self.others_come)
        return SimpleNamespace(comm=comm, outer=outer, sharding=self.sharding, device=cpu, optimizers=(None,))

    def before(self, _optimizer: Any) -> None:
        self.judged.append("before")

    def drain(self) -> None:
        self.judged.append("drain")


@pytest.mark.parametrize(
    "step",
    [Step(1, 1), Step(3, 3), Step(1, 1, others_come=False), Step(1, 1, deferred=True)],
    ids=["one", "three", "others at the update", "deferred, all fail"],
)
def test_a_step_whose_gradients_are_whole_is_judged(step: Step) -> None:
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == ["before", "drain"]


@pytest.mark.parametrize(
    "step",
    [
        Step(1, 0),
        Step(2, 1),
        Step(1, 1, reduced=False),
        Step(1, 1, sharding="a mesh"),
        Step(1, 1, deferred=True, others_come=False),
    ],
    ids=["first forward", "another forward or its backward", "between micro-batches", "shards", "deferred"],
)
def test_a_rank_that_fails_while_the_others_compute_asks_them_nothing(step: Step) -> None:
    Farewell(step).judge_open_step()  # type: ignore[arg-type]
    assert step.judged == []
