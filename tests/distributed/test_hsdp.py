"""HSDP over a 2-D mesh, 3 x 2 and 2 x 2 ranks: shards against their replicas, and what `attach` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.conftest import launch

pytestmark = pytest.mark.timeout(300)
Results = list[dict[str, Any]]


def launched(out: Path, ranks: int) -> Results:
    ended = launch("tests.distributed.hsdp_worker", ranks, str(out))
    assert [code for code, _ in ended] == [0] * ranks, ended[0][1][-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def alike(results: Results, name: str) -> Any:
    """What every rank found, which must be the same."""
    assert [r[name] for r in results] == [results[0][name]] * len(results)
    return results[0][name]


def test_a_flipped_shard_is_named_among_three_replicas(tmp_path: Path) -> None:
    six = launched(tmp_path, 6)
    assert alike(six, "healthy") == {"tensors": [], "ranks": [], "involved": []}
    assert alike(six, "rank 3") == {"tensors": ["0.weight"], "ranks": [3], "involved": []}
    assert alike(six, "ranks 2 and 5") == {"tensors": ["0.weight"], "ranks": [2, 5], "involved": []}
    assert "not guard yet" in alike(six, "attach")
    assert "nothing to compare it with" in alike(six, "attach, plain FSDP")
    assert "nothing to compare it with" in alike(six, "plain FSDP")


def test_of_two_replicas_nobody_is_named(tmp_path: Path) -> None:
    four = launched(tmp_path, 4)
    assert alike(four, "rank 3") == {"tensors": ["0.weight"], "ranks": [], "involved": [1, 3]}
