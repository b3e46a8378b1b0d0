"""Whom findings may name where ranks compute with weights that they gather from each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.unit.agent.places import even_map
from training_agent._sharding import Sharding
from training_agent.checks.weights import compare_replicas
from training_agent.contract import Finding, FindingKind, SecondConfirmation, Verdict

RANKS = even_map(6, 2)
MESH = Sharding(((0, 1), (2, 3), (4, 5)), frozenset())


def accused(*ranks: int) -> tuple[Finding, ...]:
    return tuple(Finding(FindingKind.PAIR, rank=r, place=RANKS.place(r), majority=True) for r in ranks)


def named(findings: tuple[Finding, ...]) -> list[int | None]:
    return [f.rank for f in findings]


def test_a_rank_whose_mate_is_right_stays_named() -> None:
    assert MESH.believable(RANKS, accused(3)) == accused(3)
    assert MESH.believable(RANKS, accused(1, 3)) == accused(1, 3)


def test_where_all_ranks_of_a_replica_are_wrong_none_of_them_is_named() -> None:
    found = MESH.believable(RANKS, accused(2, 3, 5))
    assert named(found) == [5, None]
    together = found[-1]
    assert (together.kind, together.verdict) == (FindingKind.PAIR, Verdict.UNATTRIBUTABLE)
    assert [p.rank for p in together.involved] == [2, 3]
    assert "one of them may have misled the others" in together.evidence


AGREES, REPEATS = SecondConfirmation.AGREES, SecondConfirmation.REPEATS


@pytest.mark.parametrize(
    ("verdict", "again", "stays"),
    [
        (Verdict.TRANSIENT, None, False),
        (Verdict.REPLAYER, AGREES, False),
        (Verdict.REPLAYER, SecondConfirmation.UNAVAILABLE, False),
        (Verdict.REPLAYER, REPEATS, True),  # its mates gathered the same weights then, and were right
        (Verdict.PERSISTENT, None, True),
    ],
)
def test_a_rank_that_was_wrong_once_is_believed_only_where_the_gathered_weights_were_compared(
    verdict: Verdict, again: SecondConfirmation | None, stays: bool
) -> None:
    found = tuple(replace(f, verdict=verdict, second_confirmation=again) for f in accused(3))
    assert MESH.believable(RANKS, found) == found
    unseen = MESH.believable(RANKS, found, weights_seen=False)
    assert (unseen == found) is stays
    if not stays:
        assert named(unseen) == [None]
        assert [p.rank for p in unseen[0].involved] == [2, 3]
        assert "may have misled" in unseen[0].evidence


def test_a_replica_of_one_rank_gathers_from_nobody() -> None:
    alone = Sharding(((0,), (1,), (2,), (3,), (4,), (5,)), frozenset())
    assert alone.believable(RANKS, accused(2)) == accused(2)


def test_findings_without_a_name_are_left_as_they_are() -> None:
    software = Finding(FindingKind.SOFTWARE, involved=RANKS.places, evidence="x")
    assert MESH.believable(RANKS, (software,)) == (software,)


def test_counters_in_host_memory_travel_in_the_memory_that_the_group_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def moved(rows: torch.Tensor, **_: object) -> None:
        raise RuntimeError(f"moves {rows.device.type}")

    monkeypatch.setattr(dist, "all_reduce", moved)
    steps = {"optimizer state step of head": torch.zeros(())}
    group: dist.ProcessGroup = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="moves meta"):
        compare_replicas(steps, group, device=torch.device("meta"))
