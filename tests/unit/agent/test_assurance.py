"""The figures of a run: summed over its starts, carried by checkpoints, never more than was seen."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from training_agent import _assurance
from training_agent._assurance import Assurance

WORLD = 4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment that the code reads; a test moves it on."""
    now = [100.0]
    monkeypatch.setattr(_assurance.time, "perf_counter", lambda: now[0])
    return now


def start(step: int = 0) -> Assurance:
    return Assurance.begun(step, WORLD, [torch.zeros(10), torch.zeros(5, dtype=torch.float16)])


def run(a: Assurance, clock: list[float], first: int, last: int, every: int = 10) -> None:
    """Steps of one second, audited ones of three; weights are compared at the same steps."""
    for step in range(first, last + 1):
        due = step % every == 0
        a.begin()
        clock[0] += 3 if due else 1
        if due:
            a.audited(step, 1000)
            a.compared()
        a.applied(audited=due, compared=due)
        clock[0] += 60  # data, or a save: not the step's


def manifest(a: Assurance, step: int) -> dict[str, Any]:
    return json.loads(json.dumps({"step": step, "assurance": a.plain(step)}))  # type: ignore[no-any-return]


def test_gpu_steps_bytes_and_gaps_are_counted(clock: list[float]) -> None:
    a = start()
    run(a, clock, 1, 25)
    got = a.plain(25)
    assert (got["gpu_steps"], got["gpu_steps_audited"], got["audits"]) == (100, 8, 2)
    assert got["bytes_replayed"] == 2 * 1000 * WORLD and got["bytes_of_weights"] == 2 * 50 * WORLD
    assert (got["longest_gap"], got["last_audit"], got["since_step"], got["starts"]) == (10, 20, 0, 1)


def test_only_the_step_itself_is_timed_and_the_first_one_of_a_start_is_left_out(clock: list[float]) -> None:
    a = start()
    run(a, clock, 1, 20)
    assert a.plain(20)["seconds"] == {
        "plain": [17, 17.0], "audited": [0, 0.0], "weights compared": [0, 0.0],
        "audited, weights compared": [2, 6.0],
    }  # fmt: skip


def test_a_start_from_a_checkpoint_goes_on_counting_and_what_an_alarm_threw_away_is_not_counted(
    clock: list[float],
) -> None:
    before = start()
    run(before, clock, 1, 20)
    saved = manifest(before, 20)
    run(before, clock, 21, 29)  # then an alarm: these steps are in no checkpoint
    after = start()
    after.resume(saved)
    run(after, clock, 21, 40)
    got = after.plain(40)
    assert (got["gpu_steps"], got["audits"], got["starts"], got["longest_gap"]) == (160, 4, 2, 10)
    assert (got["since_step"], got["last_audit"]) == (0, 40)
    assert got["seconds"]["plain"][0] == 17 + 18 - 1  # the first step of each start


def test_a_start_that_tried_a_damaged_checkpoint_first_counts_the_older_one_alone(clock: list[float]) -> None:
    before = start()
    run(before, clock, 1, 20)
    older = manifest(before, 20)
    run(before, clock, 21, 40)
    after = start()
    for tried in (manifest(before, 40), older):
        after.resume(tried)
    once = start()
    once.resume(older)
    assert after.plain(20) == once.plain(20)
    after.resume({"step": 7})
    assert after.plain(7) == start(7).plain(7)


def test_audits_with_the_kernels_of_every_step_are_counted_over_starts_that_had_others(
    clock: list[float],
) -> None:
    before = start()
    run(before, clock, 1, 20)
    older = manifest(before, 20)
    del older["assurance"]["audits_forced"]  # as the first manifests have it
    after = Assurance.begun(20, WORLD, [], forced=True)
    after.resume(older)
    run(after, clock, 21, 50)
    got = after.plain(50)
    assert (got["audits"], got["audits_forced"]) == (5, 3)
    again = start()
    again.resume(manifest(after, 50))
    run(again, clock, 51, 60)
    assert (again.plain(60)["audits"], again.plain(60)["audits_forced"]) == (6, 3)


def test_a_gap_reaches_over_a_restart(clock: list[float]) -> None:
    before = start()
    run(before, clock, 1, 10)
    after = start()
    after.resume(manifest(before, 15))
    run(after, clock, 16, 40, every=40)
    assert after.plain(40)["longest_gap"] == 30


def test_another_number_of_ranks_adds_its_own_gpu_steps(clock: list[float]) -> None:
    before = start()
    run(before, clock, 1, 10)
    after = Assurance.begun(0, 2, [])
    after.resume(manifest(before, 10))
    run(after, clock, 11, 20)
    assert after.plain(20)["gpu_steps"] == 10 * 4 + 10 * 2 and after.plain(20)["gpu_steps_audited"] == 6


@pytest.mark.parametrize(
    "figures", [None, {}, {"audits": 3}, "x", {"audits": "many"}, {"seconds": []}], ids=repr
)
def test_a_manifest_without_figures_of_ours_counts_from_its_step(figures: object, clock: list[float]) -> None:
    a = start()
    a.resume({"step": 50, "assurance": figures})
    run(a, clock, 51, 60)
    got = a.plain(60)
    assert (got["since_step"], got["gpu_steps"], got["audits"], got["starts"]) == (50, 40, 1, 1)
    assert got["longest_gap"] == 10


def test_ranks_that_hold_shards_compare_each_replica_once() -> None:
    sharded = Assurance.begun(0, 6, [torch.zeros(10)], replicas=3)
    sharded.compared()
    assert sharded.plain(0)["bytes_of_weights"] == 3 * 40
