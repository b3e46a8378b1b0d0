"""The checksum of the reduction on three real ranks: one wrong element inside the all-reduce, and none."""

from __future__ import annotations

from typing import Any

import pytest

SEEN = ("1.0e-03", "1.0e-04", "3.0e-05", "1.0e-05", "3.0e-06")  # of the gradient's norm
UNSEEN = ("3.0e-07", "1.0e-07")  # below the rounding of float32 sums


@pytest.fixture(scope="module")
def ranks(costs: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [rank["reduction"] for rank in costs[3]]


def test_a_finite_error_inside_the_all_reduce_is_dropped_on_all_ranks_down_to_the_published_size(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        seen = rank["fp32 weights"]["seen"]
        assert [seen[size] for size in SEEN] == [1] * len(SEEN)
        assert [seen[size] for size in UNSEEN] == [0] * len(UNSEEN)
        assert "sees a single wrong element only if it is larger than" in " ".join(
            rank["fp32 weights"]["notes"]
        )


def test_healthy_reductions_are_quiet_also_where_a_hook_rounds_by_itself(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert [rank[kind]["alarms"] for kind in rank] == [0, 0]
        assert rank["compressing hook"]["limit"] > 1000 * rank["fp32 weights"]["limit"]
