"""What a start that waits writes: in full at once, then short and seldom, from one rank a node."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import yaml

from training_agent.hold_lines import LONGEST_S, HoldLines

from .builders import ROOT, a_place

DAY_S = 24 * 3600


class Clock:
    """Seconds, as told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def held(
    capsys: pytest.CaptureFixture[str], rank: int, seconds: int, why: str = "it"
) -> list[dict[str, Any]]:
    clock = Clock()
    lines = HoldLines(a_place(rank), 2, 5.0, clock)
    for second in range(seconds + 1):
        clock.now = float(second)
        lines.say("holding", why, next="sdc clear")
    return written(capsys)


def test_a_hold_says_why_once_and_then_seldom(capsys: pytest.CaptureFixture[str]) -> None:
    """Found: 142 long lines in 190 seconds from four ranks."""
    first, *later = held(capsys, 0, 190)
    assert (first["why"], first["next"], first["waited_s"]) == ("it", "sdc clear", 0.0)
    assert [line["waited_s"] for line in later] == [5.0, 15.0, 35.0, 75.0, 155.0]
    assert all(set(line) == {"sdc", "time", "rank", "node", "attempt", "waited_s"} for line in later)


def test_one_rank_of_a_node_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert [len(held(capsys, rank, 190)) for rank in range(4)] == [6, 0, 6, 0]


def test_the_lines_of_a_day_are_no_hang_for_the_example_s_rule(capsys: pytest.CaptureFixture[str]) -> None:
    job = yaml.safe_load((ROOT / "examples" / "hyperpod" / "job.yaml").read_text())
    rules = job["spec"]["runPolicy"]["logMonitoringConfiguration"]
    patience = min(r["expectedRecurringFrequencyInSeconds"] for r in rules)
    times = [line["waited_s"] for line in held(capsys, 0, DAY_S)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) == LONGEST_S
    assert patience >= 2 * LONGEST_S  # a line that is lost is no hang either


def test_another_reason_is_said_in_full_at_once_and_a_known_one_in_its_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    lines = HoldLines(a_place(0), 2, 5.0, clock)
    for second in range(60):
        clock.now = float(second)
        lines.say("holding", "b" if second in (20, 22, 24) else "a")
    said = [(line["waited_s"], line.get("why")) for line in written(capsys)]
    assert said == [(0, "a"), (5, None), (15, None), (20, "b"), (25, "a"), (35, None), (55, None)]


def test_a_wait_for_other_ranks_is_said_once_it_has_lasted(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = HoldLines(a_place(0), 2, 5.0, clock)
    for second in range(16):
        clock.now = float(second)
        lines.say("waiting", "for the places of ranks 3")
    clock.now = 15.5
    lines.say("holding", "it")
    said = [(line["sdc"], line["waited_s"], "why" in line) for line in written(capsys)]
    assert said == [("waiting", 5.0, True), ("waiting", 15.0, False), ("holding", 15.5, True)]
