"""Switches of float32 precision, old and new: neither may end a job, and replays put both back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from training_agent import _capture, _precision
from training_agent.determinism import environment

CPU = torch.device("cpu")
SWITCHES: Any = torch.backends
needs_new = pytest.mark.skipif(
    "cuda.matmul" not in _precision._switches(), reason="this torch has the old switch alone"
)


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    before = {name: switch.fp32_precision for name, switch in _precision._switches().items()}
    yield
    for name, switch in _precision._switches().items():
        switch.fp32_precision = before[name]
    torch.set_float32_matmul_precision("highest")


def entered(wanted: _precision.Precision) -> tuple[_precision.Precision, _precision.Precision]:
    """What a replay with these switches sees, and what they are after it."""
    contexts = replace(_capture.current_contexts(CPU), matmul_precision=wanted)
    with ExitStack() as stack:
        _capture._enter_contexts(stack, contexts, CPU)
        inside = _precision.allowed()
    return inside, _precision.allowed()


def test_the_old_switch_is_shipped_and_put_back() -> None:
    assert entered("high") == ("high", "highest")


@needs_new
@pytest.mark.parametrize("name", ["cuda.matmul", "mkldnn.matmul"])
def test_a_job_that_sets_a_new_switch_is_guarded_and_its_switches_are_shipped(name: str) -> None:
    """As torch's documentation has it for TF32 on a GPU: the old switch is an error to ask from then on."""
    _precision._switches()[name].fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    mine = _precision.allowed()
    assert dict(mine)[name] == "tf32"  # type: ignore[arg-type]
    assert environment(CPU)["float32 precision"][name] == "tf32"  # type: ignore[index]
    theirs = tuple((n, "ieee" if n == name else value) for n, value in mine)
    inside, after = entered(theirs)  # type: ignore[arg-type]
    assert (after, _precision.allowed()) == (mine, mine)
    assert inside != mine


@needs_new
def test_ranks_that_compute_with_other_precisions_are_told_apart() -> None:
    before = environment(CPU)
    SWITCHES.cudnn.conv.fp32_precision = "ieee"
    assert environment(CPU) != before
