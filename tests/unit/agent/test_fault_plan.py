"""Which faults can be planned, and the sentences that refuse the others."""

from __future__ import annotations

from typing import Any

import pytest

from training_agent.errors import ConfigurationError
from training_agent.fault_plan import Fault, FaultPlan, describe
from training_agent.schedule import Schedule

TENS = Schedule(audit_every=10, check_every=10, ckpt_every=10)


def plan(name: str = "forward-x1000", rank: Any = 3, step: Any = 23, seed: Any = 1, **more: Any) -> FaultPlan:
    settings = {"total_steps": 60, "world_size": 6, "gpus_per_node": 2, "schedule": TENS} | more
    return FaultPlan.parse(name, rank, step, seed, **settings)


def test_list_has_one_fault_per_line_with_its_name_first() -> None:
    assert [line.split()[0] for line in describe().splitlines()] == [
        "none",
        "nan-once",
        "forward-x1000",
        "forward-x1000-once",
        "replayer-x1000",
        "weight-grad-x1000",
        "weight-flip",
        "two-gpus",
    ]


def test_text_from_the_environment_is_accepted() -> None:
    assert plan(rank="3", step="23", seed="1") == plan() == FaultPlan(Fault.FORWARD, (3,), 23, 1)


def test_no_fault_binds_to_nobody() -> None:
    assert plan("none", rank=99, step=0).ranks == ()


def test_one_off_finite_fault_waits_for_the_next_audit() -> None:
    assert plan("forward-x1000-once").step == 30
    assert plan("forward-x1000-once", step=30).step == 30
    assert plan("nan-once").step == 23
    assert plan("weight-flip").step == 23


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"name": "forward"}, "FAULT='forward' does not exist; choose one of none, nan-once"),
        ({"rank": 6}, "this job has ranks 0 to 5"),
        ({"rank": -1}, "this job has ranks 0 to 5"),
        ({"step": 0}, "this run has steps 1 to 60"),
        ({"step": 61}, "this run has steps 1 to 60"),
        ({"step": "soon"}, "FAULT_STEP='soon' is no whole number"),
        ({"rank": 1.5}, "FAULT_RANK=1.5 is no whole number"),
        ({"seed": True}, "SEED=True is no whole number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan(**more)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "name", ["forward-x1000", "forward-x1000-once", "replayer-x1000", "weight-grad-x1000", "two-gpus"]
)
def test_step_after_the_last_audit_is_refused_with_that_sentence(name: str) -> None:
    with pytest.raises(ConfigurationError, match="after the last audit of this run of 58 steps") as refused:
        plan(name, step=51, total_steps=58)
    assert "choose FAULT_STEP at most 50" in str(refused.value)
    assert plan(name, step=50, total_steps=58).step == 50


def test_step_after_the_last_weight_check_is_refused_with_that_sentence() -> None:
    late = Schedule(audit_every=1, check_every=10, ckpt_every=None)
    with pytest.raises(ConfigurationError, match="after the last weight check of this run of 58 steps"):
        plan("weight-flip", step=51, total_steps=58, schedule=late)


def test_run_without_any_audit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="train for at least 10 steps"):
        plan(step=3, total_steps=9)
    with pytest.warns(UserWarning, match="audit_every=None"):
        never = Schedule(audit_every=None)
    with pytest.raises(ConfigurationError, match="set audit_every"):
        plan(schedule=never)


def test_nan_needs_no_audit() -> None:
    assert plan("nan-once", step=58, total_steps=58).step == 58


@pytest.mark.parametrize(("world", "gpus"), [(4, 1), (4, 2), (6, 6)])
def test_two_gpus_without_a_majority_of_healthy_ones_are_refused(world: int, gpus: int) -> None:
    with pytest.raises(ConfigurationError, match="at least 5 ranks on two nodes"):
        plan("two-gpus", rank=0, world_size=world, gpus_per_node=gpus)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rank", range(8))
def test_two_gpus_are_on_two_nodes(rank: int, seed: int) -> None:
    first, second = plan("two-gpus", rank=rank, seed=seed, world_size=8, gpus_per_node=2).ranks
    assert first == rank
    assert first // 2 != second // 2
