"""When checks are due, and which schedules are refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training_agent.errors import ConfigurationError
from training_agent.schedule import Partner, Schedule, ScheduleWarning


def test_defaults_are_the_documented_ones() -> None:
    s = Schedule()
    assert (s.audit_every, s.check_every, s.ckpt_every, s.strict) == (100, 10, 1000, True)
    assert s.check_on_checkpoint and s.partner is Partner.ROTATE and s.gaps == ()


def test_checkpoint_step_is_audited_and_weight_checked_whatever_the_intervals() -> None:
    s = Schedule(audit_every=10, check_every=4, ckpt_every=7)
    assert [t for t in range(1, 22) if s.audit_due(t)] == [7, 10, 14, 20, 21]
    assert [t for t in range(1, 22) if s.weights_due(t)] == [4, 7, 8, 12, 14, 16, 20, 21]
    assert [t for t in range(1, 22) if s.checkpoint_due(t)] == [7, 14, 21]


def test_optimizer_state_is_compared_at_weight_checks_that_a_save_may_follow() -> None:
    saves = Schedule(audit_every=100, check_every=4, ckpt_every=6)
    assert [t for t in range(1, 25) if saves.state_due(t)] == [6, 12, 18, 24]
    any_time = Schedule(audit_every=100, check_every=4, ckpt_every=None)
    assert [t for t in range(1, 13) if any_time.state_due(t)] == [4, 8, 12]
    with pytest.warns(ScheduleWarning, match="optimizer_state=False"):
        off = Schedule(audit_every=100, check_every=4, ckpt_every=6, optimizer_state=False)
    assert not any(off.state_due(t) for t in range(1, 25))


def test_strict_off_and_check_on_checkpoint_off_give_one_warning_that_names_both_gaps() -> None:
    with pytest.warns(ScheduleWarning) as caught:
        s = Schedule(audit_every=10, check_every=4, ckpt_every=7, strict=False, check_on_checkpoint=False)
    assert len(caught) == 1
    assert "strict=False" in str(caught[0].message)
    assert "check_on_checkpoint=False" in str(caught[0].message)
    assert not s.audit_due(7) and not s.weights_due(7)
    assert caught[0].filename == __file__


def test_no_audits_is_accepted_with_one_warning() -> None:
    with pytest.warns(ScheduleWarning, match="audit_every=None") as caught:
        s = Schedule(audit_every=None, ckpt_every=5)
    assert len(caught) == 1
    assert not any(s.audit_due(t) for t in range(1, 100))
    assert s.next_audit(1) is None
    assert s.weights_due(5)


def test_no_regular_checkpoints() -> None:
    s = Schedule(ckpt_every=None)
    assert not s.checkpoint_due(1000)


@pytest.mark.parametrize("value", [0, -3, True, 10.0, "10", float("nan")])
@pytest.mark.parametrize("name", ["audit_every", "check_every", "ckpt_every"])
def test_bad_interval_is_refused_with_cause_and_remedy(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Schedule(**{name: value})
    assert f"{name}={value!r}" in str(refused.value)
    assert "give a whole number of steps from 1 on" in str(refused.value)


def test_weight_checks_cannot_be_switched_off() -> None:
    nothing: Any = None
    with pytest.raises(ConfigurationError, match="check_every=None"):
        Schedule(check_every=nothing)


@pytest.mark.parametrize("bad", [{"strict": 1}, {"check_on_checkpoint": "no"}, {"partner": "random"}])
def test_bad_switch_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        Schedule(**bad)


def test_partner_as_text() -> None:
    text: Any = "fixed"
    assert Schedule(partner=text).partner is Partner.FIXED


@given(
    st.integers(1, 30), st.integers(1, 30), st.integers(1, 30) | st.none(), st.booleans(), st.integers(1, 200)
)
def test_next_check_is_the_first_due_step(
    audit: int, check: int, ckpt: int | None, strict: bool, step: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        s = Schedule(audit, check, ckpt, strict=strict, check_on_checkpoint=strict)
    assert s.next_audit(step) == next(t for t in range(step, 400) if s.audit_due(t))
    assert s.next_weight_check(step) == next(t for t in range(step, 400) if s.weights_due(t))
