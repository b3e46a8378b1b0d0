"""Attribution in real processes, sampled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import rows, sample


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layout", ["6x3", "8x4"])
def test_a_healthy_rank_is_never_named_in_real_processes(layout: str, tmp_path: Path) -> None:
    assert sample.run(rows.load(), layout, 60, tmp_path, timeout=3000) == []


def test_sampled_cases_are_the_same_on_every_rank_and_of_every_kind() -> None:
    table = rows.load()
    first, second = (list(sample.cases(table, "6x3", 40)) for _ in range(2))
    assert first == second
    assert {len(c.row["faults"]) for c in first} == {1, 2}
    phases = {f.get("phases") for c in first for f in c.row["faults"]}
    assert phases == {None, "step", "replays"}
