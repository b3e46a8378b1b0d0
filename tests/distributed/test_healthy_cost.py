"""What a healthy step costs beside plain DDP, counted: the same for any number of ranks."""

from __future__ import annotations

from typing import Any

import pytest

RANKS = [2, 3]


@pytest.fixture(scope="module")
def added(costs: dict[int, list[dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """By number of ranks: what the guard adds to a step of plain DDP, in each mode."""
    return {ranks: costs[ranks][0] for ranks in RANKS}


@pytest.mark.parametrize("ranks", RANKS)
def test_immediate_mode_waits_for_the_device_once_a_step(added: dict[int, Any], ranks: int) -> None:
    step = added[ranks]["immediate, guarded"]
    assert step["host_syncs"] == 1, step["by_name"]
    assert step["late_reads"] == 0


@pytest.mark.parametrize("ranks", RANKS)
def test_deferred_mode_never_waits_and_reads_the_last_steps_flags(added: dict[int, Any], ranks: int) -> None:
    step = added[ranks]["deferred, guarded"]
    assert step["host_syncs"] == 0, step["by_name"]
    assert step["late_reads"] == 1


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_one_item_more_in_the_users_step_is_counted(added: dict[int, Any], mode: str) -> None:
    """Otherwise the two tests above would prove nothing."""
    for ranks in RANKS:
        step, more = added[ranks][f"{mode}, guarded"], added[ranks][f"{mode}, with item"]
        assert more["host_syncs"] == step["host_syncs"] + 1


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_one_small_all_reduce_a_step_whatever_the_number_of_ranks(added: dict[int, Any], mode: str) -> None:
    for ranks in RANKS:
        step = added[ranks][f"{mode}, guarded"]
        assert step["collectives"] == step["by_name"]["c10d::allreduce_"] == 1
        assert step["sent_bytes"] == 3 * 8
    two, three = ({**added[ranks][f"{mode}, guarded"], "norm_bytes": None} for ranks in RANKS)
    assert two == three


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
@pytest.mark.parametrize("ranks", RANKS)
def test_each_gradient_is_read_once_before_its_reduction_and_by_one_rank_after_it(
    costs: dict[int, list[dict[str, Any]]], ranks: int, mode: str
) -> None:
    steps = [rank[f"{mode}, guarded"] for rank in costs[ranks]]
    shares = [step["norm_bytes"] - step["gradient_bytes"] for step in steps]
    assert sum(shares) == steps[0]["gradient_bytes"]
    assert max(shares) - min(shares) <= 4  # bytes: one element


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
@pytest.mark.parametrize("ranks", RANKS)
def test_lazy_naming_reads_no_large_local_gradient(
    costs: dict[int, list[dict[str, Any]]], ranks: int, mode: str
) -> None:
    steps = [rank[f"{mode}, lazy naming"] for rank in costs[ranks]]
    full = costs[ranks][0][f"{mode}, guarded"]
    assert 0 < steps[0]["tiny_bytes"] < steps[0]["gradient_bytes"] / 20
    assert sum(step["norm_bytes"] - step["tiny_bytes"] for step in steps) == steps[0]["gradient_bytes"]
    assert (steps[0]["host_syncs"], steps[0]["collectives"]) == (full["host_syncs"], full["collectives"])


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_a_step_without_a_layer_audit_costs_nothing_more_where_those_are_on(
    added: dict[int, Any], mode: str
) -> None:
    for ranks in RANKS:
        assert added[ranks][f"{mode}, layers between"] == added[ranks][f"{mode}, guarded"]


def test_a_layer_audit_adds_two_small_all_reduces_and_one_swap_whatever_the_number_of_ranks(
    added: dict[int, Any],
) -> None:
    two, three = (added[ranks]["immediate, layer audit"] for ranks in RANKS)
    for step in (two, three):
        calls = {name: n for name, n in step["by_name"].items() if name.startswith("c10d")}
        assert calls == {"c10d::allreduce_": 3, "c10d::send": 2, "c10d::recv_": 2}
        assert step["host_syncs"] == 10
    assert two["sent_bytes"] == three["sent_bytes"]


@pytest.mark.parametrize("ranks", RANKS)
def test_a_large_batch_is_on_its_way_while_the_backward_runs_and_a_small_one_is_not(
    added: dict[int, Any], ranks: int
) -> None:
    large, small = added[ranks]["audit, large batch"], added[ranks]["audit, small batch"]
    assert large["audits_passed"] == small["audits_passed"] == 2
    messages = {"c10d::send": 1, "c10d::recv_": 1}
    assert {k: v for k, v in large["by_name"].items() if k not in small["by_name"]} == messages
    assert large["host_syncs"] == small["host_syncs"] == 0


@pytest.mark.parametrize("mode", ["immediate", "deferred"])
def test_the_reductions_checksum_adds_one_small_all_reduce_and_no_wait(
    added: dict[int, Any], mode: str
) -> None:
    for ranks in RANKS:
        step, plain = added[ranks][f"{mode}, checksum"], added[ranks][f"{mode}, guarded"]
        assert step["collectives"] == plain["collectives"] + 1
        assert step["sent_bytes"] == plain["sent_bytes"] + 8 + 2 * 8 * step["tensors"]
        assert step["host_syncs"] == plain["host_syncs"]
        assert step["norm_bytes"] == plain["norm_bytes"] + step["gradient_bytes"]  # beside two sums
