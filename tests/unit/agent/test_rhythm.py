"""The pace of audits inside the guard: what it is told, what it asks the other ranks, what it says."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest

from training_agent._alarm import Sighting
from training_agent._gate import Tally
from training_agent._rhythm import Rhythm
from training_agent.contract import Check
from training_agent.pace import LEAST, WATCHFUL_STEPS, Pace
from training_agent.schedule import Schedule


@dataclass
class Slowest:
    """The replica group, in which another rank's audits cost `permille` of a step."""

    permille: int = 0
    is_first: bool = True
    asked: list[list[int]] = field(default_factory=list)

    def largest(self, values: list[int]) -> list[int]:
        self.asked.append(values)
        return [max(v, self.permille) for v in values]


def rhythm(comm: Slowest, **options: Any) -> Rhythm:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Rhythm(comm, Pace(Schedule(ckpt_every=None, **options), 0))  # type: ignore[arg-type]


def calm(norm: float = 1.0, loss: float = 2.0) -> Tally:
    return Tally(0, 0, 0, loss=loss, norm=norm)


def pass_start(own: Rhythm) -> int:
    """The watchful steps after the start; the last step."""
    for step in range(1, WATCHFUL_STEPS + 1):
        own.judged(step, audit=own.due(step))
        own.seen(step, calm())
    return WATCHFUL_STEPS


@pytest.mark.parametrize("tally", [calm(norm=100.0), calm(loss=50.0)])
def test_a_spike_of_loss_or_norm_brings_an_audit_forward_and_no_alarm(tally: Tally) -> None:
    own = rhythm(Slowest(), max_poisoned_steps=499)
    step = pass_start(own) + 50
    assert not own.due(step) and not own.due(step + 1)
    own.seen(step, tally)
    assert own.due(step + 1)


def test_numbers_that_were_not_measured_are_no_spikes() -> None:
    own = rhythm(Slowest(), max_poisoned_steps=499)
    for step in range(1, 2 * LEAST):
        own.seen(step, Tally(0, 0, 0))
    own.seen(40, calm())
    assert own.pace.rate(1).reason == "watchful for 100 steps after a start"


def test_a_check_that_the_policy_let_pass_makes_it_watchful() -> None:
    own = rhythm(Slowest(), max_poisoned_steps=499)
    step = pass_start(own) + 50
    own.let_pass(Sighting(Check.NONFINITE, step, ()))
    assert own.due(step + 1)
    assert own.pace.rate(step + 1).reason.startswith("watchful for 100 steps after check nonfinite")


def test_the_slowest_ranks_cost_decides_on_all_of_them() -> None:
    comm = Slowest(permille=3000)
    own = rhythm(comm, overhead_budget=0.02)
    step = pass_start(own)
    assert own.pace.rate(step + 1).every == 150
    assert len(comm.asked) == WATCHFUL_STEPS // 10, "one small all-reduce an audit"


def test_without_a_budget_nothing_is_asked_and_with_fixed_intervals_nothing_is_kept() -> None:
    for options in ({"max_poisoned_steps": 9}, {"audit_every": 10}):
        comm = Slowest()
        own = rhythm(comm, **options)
        pass_start(own)
        assert comm.asked == []
    assert own.every is None and not own.by_outcome


def test_each_change_of_the_rate_is_one_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    own = rhythm(Slowest(), max_poisoned_steps=499)
    step = pass_start(own)
    for later in range(step + 1, step + 20):
        own.due(later)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["step"], e["every"], e["reason"]) for e in lines if e["sdc"] == "audit_rate"] == [
        (1, 10, "watchful for 100 steps after a start"),
        (101, 500, "max_poisoned_steps=499"),
    ]
    assert own.every == 500


def test_only_the_first_rank_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    own = rhythm(Slowest(is_first=False), max_poisoned_steps=499)
    assert pass_start(own) and own.every == 10
    assert capsys.readouterr().out == ""


def test_after_a_checkpoint_it_is_a_start_again() -> None:
    own = rhythm(Slowest(), max_poisoned_steps=499)
    own.restart(7000)
    assert not own.due(7009) and own.due(7010)
