"""On which GPU the checks' own values travel, without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import training_agent
from training_agent._objects import gathered, handed_out, moves

CPU, GPU = torch.device("cpu"), torch.device("cuda:3")
ELSEWHERE = {"_objects.py", "checkpoint_together.py"}  # the latter has a group of the user's and no device


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The process's GPU, as `torch.cuda.device` sets it; 0 as long as nobody has."""
    now = [torch.device("cuda:0")]

    @contextmanager
    def device(other: torch.device) -> Iterator[None]:
        now.append(other)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    return now


def test_values_of_the_ranks_travel_through_each_ones_own_gpu_also_where_the_loop_never_set_it(
    current: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[torch.device] = []

    def collective(*_: Any, **__: Any) -> None:
        used.append(current[-1])

    monkeypatch.setattr(dist, "get_world_size", lambda _group: 2)
    monkeypatch.setattr(dist, "all_gather_object", collective)
    monkeypatch.setattr(dist, "broadcast_object_list", collective)
    group: Any = None
    assert gathered("a", group, GPU) == [None, None]
    assert handed_out("a", 0, group, GPU) == "a"
    gathered("a", group, CPU)
    assert used == [GPU, GPU, torch.device("cuda:0")]
    assert current == [torch.device("cuda:0")], "the loop's own is as it was"


def test_no_other_code_of_the_agent_sends_objects() -> None:
    folder = Path(training_agent.__file__).parent
    calls = ("all_gather_object(", "broadcast_object_list(", "gather_object(", "scatter_object_list(")
    found = {p.name for p in folder.rglob("*.py") if any(call in p.read_text() for call in calls)}
    assert found == ELSEWHERE


@pytest.mark.parametrize(
    ("backends", "where"),
    [("cuda:nccl", GPU), ("cpu:gloo,cuda:nccl", GPU), ("cpu:gloo,cuda:gloo", CPU), ("cpu:gloo", CPU)],
)
def test_numbers_stay_on_a_gpu_wherever_nccl_moves_its_memory(
    backends: str, where: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init_process_group()` without a name makes a backend a kind of device; its own is "undefined"."""
    monkeypatch.setattr(dist, "get_backend_config", lambda _group: backends)
    group: Any = None
    assert moves(group, GPU) == where
    assert moves(group, CPU) == CPU
