"""What the benchmark counts as a wait of the host, and what not: the proof that healthy steps do not wait."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.bench.counting import counted, crosses

Use = Callable[[Tensor], Any]


def clipped(x: Tensor) -> None:
    parameter = nn.Parameter(x)
    parameter.grad = x.clone()
    nn.utils.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


WAITS: dict[str, Use] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x.any()),
    "if": lambda x: 1 if x[0] > 0 else 0,
    "format": lambda x: f"{x[0]}",
    "repr": repr,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "cpu": lambda x: x.cpu(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 2),
    "mask": lambda x: x[x > 2],
    "mask, written": lambda x: x.__setitem__(x > 2, 0.0),
    "masked select": lambda x: x.masked_select(x > 2),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeats": lambda x: torch.repeat_interleave(x.long()),
    "clipping that raises": clipped,
}
GOES_ON: dict[str, Use] = {
    "arithmetic": lambda x: (x + 1).sum().isfinite().logical_not(),
    "index": lambda x: x[torch.tensor([1, 2])],
    "index, written": lambda x: x.index_add_(0, torch.tensor([1]), torch.ones(1)),
    "slice": lambda x: x[1:3].view(2, 1).clone(),
    "norms": lambda x: torch._foreach_norm([x, x]),
    "copy": copy.deepcopy,
    "address": lambda x: x.data_ptr(),
    "where, both": lambda x: torch.where(x > 2, x, 0.0),
}


def syncs(use: Use) -> int:
    """Of a tensor that the block makes."""
    start = torch.arange(6.0)
    return sum(counted(lambda: use(start + 1)).syncs.values())


@pytest.mark.parametrize("name", WAITS)
def test_every_way_to_ask_the_device_for_a_value_is_counted(name: str) -> None:
    assert syncs(WAITS[name]) >= 1


@pytest.mark.parametrize("name", GOES_ON)
def test_what_the_device_does_alone_is_not(name: str) -> None:
    assert syncs(GOES_ON[name]) == 0


@dataclass(frozen=True)
class Placed:
    """A tensor on some device."""

    device: torch.device
    pinned: bool = False

    def is_pinned(self) -> bool:
        return self.pinned


GPU, HOST, PINNED = (
    Placed(torch.device("cuda")),
    Placed(torch.device("cpu")),
    Placed(torch.device("cpu"), pinned=True),
)


@pytest.mark.parametrize(
    ("target", "source", "waits", "waits_although_told_not_to"),
    [
        (HOST, GPU, True, True),
        (PINNED, GPU, True, False),
        (GPU, HOST, True, True),
        (GPU, PINNED, True, False),
        (GPU, GPU, False, False),
        (HOST, HOST, False, False),
    ],
)
def test_the_host_waits_for_a_copy_to_or_from_a_gpu_unless_its_memory_is_pinned(
    target: Placed, source: Placed, waits: bool, waits_although_told_not_to: bool
) -> None:
    assert crosses("aten::copy_", (target, source), {}) is waits
    assert crosses("aten::copy_", (target, source, True), {}) is waits_although_told_not_to
    assert crosses("aten::_to_copy", (source,), {"device": target.device}) is waits


def test_a_pinned_batch_goes_to_the_gpu_while_the_host_goes_on() -> None:
    there: dict[str, Any] = {"device": "cuda", "non_blocking": True}
    assert not crosses("aten::_to_copy", (PINNED,), there)
    assert crosses("aten::_to_copy", (HOST,), there)
    assert crosses("aten::_to_copy", (GPU,), {"device": "cpu", "non_blocking": True})
    assert not crosses("aten::_to_copy", (HOST,), {"dtype": torch.float64})
