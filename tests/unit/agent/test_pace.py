"""How often audits run where an outcome is asked for."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training_agent.errors import ConfigurationError
from training_agent.pace import LEAST, WATCHFUL_EVERY, WATCHFUL_STEPS, Pace, Spikes
from training_agent.schedule import Schedule


def schedule(**options: Any) -> Schedule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Schedule(ckpt_every=None, **options)


def audits(pace: Pace, first: int, last: int, cost: int | None = None) -> list[int]:
    """Steps that are audited; each audit costs `cost` permille of a step."""
    made = []
    for step in range(first, last + 1):
        if pace.due(step):
            made.append(step)
            pace.audited(step)
            if cost is not None:
                pace.measured(cost)
    return made


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(0, 10_000))
def test_no_persistent_fault_lives_longer_than_was_asked_for(most: int, start: int) -> None:
    made = audits(Pace(schedule(max_poisoned_steps=most), start), start + 1, start + 1500)
    # A fault begins right after an audit: all steps up to the next one are applied, that one is not.
    assert max(b - a - 1 for a, b in pairwise([start, *made])) <= most
    quiet = [step for step in made if step > start + WATCHFUL_STEPS + most]
    assert all(b - a == most + 1 for a, b in pairwise(quiet)), "and no audit is wasted"


@settings(max_examples=30)
@given(st.integers(1, 200), st.lists(st.integers(1, 150), max_size=30))
def test_no_persistent_fault_lives_longer_however_often_the_job_starts_again(
    most: int, lives: list[int]
) -> None:
    """Each start comes back from a checkpoint of its own last step, which no audit may have seen."""
    step, passed, applied = 0, 0, []
    for life in lives:
        pace = Pace(schedule(max_poisoned_steps=most), step, passed=passed)
        for now in range(step + 1, step + life + 1):
            if pace.due(now):
                pace.audited(now)
                applied.append(now - passed - 1)
                passed = now
        step += life
    assert max([*applied, step - passed]) <= most


def test_a_budget_next_to_nothing_is_an_interval_without_an_end() -> None:
    pace = Pace(schedule(overhead_budget=5e-324), 0)
    pace.measured(2000)
    assert pace.rate(WATCHFUL_STEPS + 1).every == 10**9


@settings(max_examples=30)
@given(st.floats(0.001, 0.5), st.integers(100, 5000))
def test_audits_stay_within_the_budget_once_their_cost_is_known(budget: float, cost: int) -> None:
    pace = Pace(schedule(overhead_budget=budget), 0)
    audits(pace, 1, WATCHFUL_STEPS, cost)
    steps = 4_000
    made = audits(pace, WATCHFUL_STEPS + 1, WATCHFUL_STEPS + steps, cost)
    assert (len(made) - 1) * cost / 1000 <= budget * steps
    assert "an audit costs" in pace.rate(steps).reason


def test_until_an_audit_was_measured_the_budget_begins_at_audit_every() -> None:
    pace = Pace(schedule(overhead_budget=0.02, audit_every=70), 0)
    assert pace.rate(WATCHFUL_STEPS + 1).every == 70
    pace.measured(2700)
    assert pace.rate(WATCHFUL_STEPS + 1).every == 140, "135, rounded up so that it does not change each time"


def test_a_reason_calls_the_budget_by_the_name_that_the_user_gave() -> None:
    pace = Pace(schedule(layer_budget=0.1).of_layers, 0, "layer_budget")
    pace.measured(500)
    assert pace.rate(500).reason == "layer_budget=0.1, an audit costs 0.50 steps"


def test_of_both_the_bound_wins_and_says_so() -> None:
    pace = Pace(schedule(overhead_budget=0.01, max_poisoned_steps=50), 0)
    pace.measured(2000)
    rate = pace.rate(WATCHFUL_STEPS + 1)
    assert rate.every == 51
    assert rate.reason.startswith("max_poisoned_steps=50, although overhead_budget=0.01, ")
    assert rate.reason.endswith("an audit costs 2.00 steps, allows only every 200")
    for _ in range(5):
        pace.measured(100)
    assert pace.rate(WATCHFUL_STEPS + 1).every == 10, "a cheap audit runs more often than the bound needs"


def test_every_start_is_watchful_and_says_why() -> None:
    for start in (0, 4711):
        pace = Pace(schedule(max_poisoned_steps=499), start)
        made = audits(pace, start + 1, start + WATCHFUL_STEPS)
        assert made == [start + 10 * i for i in range(1, 11)]
        assert pace.rate(start + 1).reason == "watchful for 100 steps after a start"
        assert pace.rate(start + WATCHFUL_STEPS + 1).every == 500


def test_suspicion_audits_the_next_step_and_is_watchful_again_but_never_audits_every_step() -> None:
    pace = Pace(schedule(max_poisoned_steps=499), 0)
    audits(pace, 1, 300)
    made = []
    for step in range(301, 331):
        if pace.due(step):
            made.append(step)
            pace.audited(step)
        pace.suspect(step, "a spike of the gradient norm")
        if step == 301:
            assert pace.due(302)
    assert made == [302, 312, 322]
    made = audits(pace, 331, 430)
    assert len(made) == 100 // WATCHFUL_EVERY
    assert "a spike of the gradient norm" in pace.rate(330).reason
    assert not pace.due(440)


def test_a_due_audit_that_was_not_made_stays_due() -> None:
    pace = Pace(schedule(max_poisoned_steps=9), 0)
    assert pace.due(10) and pace.due(10) and pace.due(11)


def test_checkpoint_steps_are_audited_all_the_same() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pace = Pace(Schedule(ckpt_every=37, max_poisoned_steps=999), 0)
    assert {37, 74, 111, 148} <= set(audits(pace, 1, 150))


def test_plain_intervals_stay_what_they_are() -> None:
    pace, plain = Pace(schedule(audit_every=30), 7), schedule(audit_every=30)
    pace.suspect(8, "anything")
    assert [s for s in range(8, 200) if pace.due(s)] == [s for s in range(8, 200) if plain.audit_due(s)]


@pytest.mark.parametrize(
    "options",
    [{"max_poisoned_steps": 0}, {"max_poisoned_steps": 1.5}, {"overhead_budget": 0}]
    + [{"overhead_budget": b} for b in (1.5, -0.1, float("nan"), True)]
    + [{"max_poisoned_steps": 5, "audit_every": None}]
    + [{"layer_every": 0}, {"layer_budget": 1.5}, {"layer_every": 1, "audit_every": None}],
)
def test_what_is_no_outcome_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        schedule(**options)


def test_layer_audits_keep_a_pace_of_their_own() -> None:
    fixed = Pace(schedule(layer_every=3, max_poisoned_steps=9).of_layers, 0)
    assert [s for s in range(1, 13) if fixed.due(s)] == [3, 6, 9, 12]
    priced = Pace(schedule(layer_budget=0.5).of_layers, 0)
    assert [s for s in range(1, 12) if priced.due(s)] == [10, 11]  # until the first was made
    priced.audited(10)
    priced.measured(400)
    assert priced.rate(500).every == 1


def test_a_spike_is_four_times_the_recent_median() -> None:
    spikes = Spikes()
    assert not any(spikes.is_one(1.0 + 0.1 * (i % 3)) for i in range(LEAST))
    assert spikes.is_one(40.0) and not spikes.is_one(3.0)
    assert not Spikes().is_one(1e9), "too little is known"


def test_a_level_that_stays_is_no_spike_for_long() -> None:
    spikes = Spikes()
    for _ in range(64):
        spikes.is_one(1.0)
    assert [spikes.is_one(100.0) for _ in range(64)].count(True) < 40
