"""Batches that a peer builds again: what it may cost, and what it must not touch."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.unit.agent.places import even_map
from training_agent._data_path import DataPath

CPU = torch.device("cpu")
RANKS = 4


@dataclass
class Ranks:
    """The replica group, of which all other ranks have what they need."""

    rank: int = 1
    ranks: tuple[int, ...] = tuple(range(RANKS))

    def total(self, counts: list[int]) -> list[int]:
        return counts

    def gather(self, value: Any) -> list[Any]:
        return [value] * len(self.ranks)


def batch_of(step: int, rank: int) -> torch.Tensor:
    random.seed(step)
    np.random.seed(step)
    torch.manual_seed(step)
    return torch.full((3,), step + random.random())


@dataclass
class Audit:
    """Rank 1 rebuilds what `target` used."""

    comm: Ranks = field(default_factory=Ranks)

    def ask(self, used: torch.Tensor, target: int) -> Any:
        path = DataPath(self.comm, even_map(RANKS, 2), CPU, batch_of)  # type: ignore[arg-type]
        batch: Any = SimpleNamespace(capture=SimpleNamespace(args=(used,), kwargs={}), backward=0)
        targets = [(rank + target - 1) % RANKS for rank in range(RANKS)]
        return path.differs(7, batch, 1, targets)


def test_what_a_loader_seeds_is_put_back() -> None:
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    assert Audit().ask(torch.zeros(3), 1) is not None
    assert (random.getstate(), str(np.random.get_state())) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
