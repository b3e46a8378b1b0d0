"""The delivery key: one for each alarm, whoever sends it and however often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.report.builders import a_finding, an_alarm
from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    decode,
    delivery_key,
    encode,
    trail_name,
)
from training_agent.quarantine import entries_of
from training_agent.spool import name_of

NOBODY = Finding(FindingKind.REDUCED)


@pytest.mark.parametrize("other", ["3 ranks from 3 on (0a1b2c3d)", "guard 2"])
def test_alarms_of_two_groups_or_guards_that_name_nobody_at_one_step_share_no_key(other: str) -> None:
    first = an_alarm(NOBODY, check=Check.NONFINITE)
    second = replace(first, group=other)
    assert delivery_key(first) != delivery_key(second)
    assert name_of(first) != name_of(second)  # the first rank's file stands: it would be the only one
    assert trail_name(first) == "trail-step-30-attempt-2.json" != trail_name(second)
    assert {e.delivery_key for e in entries_of(first)}.isdisjoint(e.delivery_key for e in entries_of(second))


@pytest.mark.parametrize("group", ["", "3 ranks from 3 on (0a1b2c3d)"])
def test_a_resend_another_rank_and_a_restart_have_the_key_of_the_alarm(group: str) -> None:
    alarm = an_alarm(NOBODY, group=group)
    again = decode(Alarm, encode(replace(alarm, time="2026-02-02T00:00:00.000Z", notes=("slimmed",))))
    restart = replace(alarm, job=replace(alarm.job, attempt=7))
    assert delivery_key(alarm) == delivery_key(again) == delivery_key(restart)


def test_one_guard_over_all_ranks_keeps_the_key_that_tables_and_spools_hold_already() -> None:
    """Computed by the version before, which knew no groups."""
    assert delivery_key(an_alarm(a_finding(1))) == "a236cdadfc4d3da04b3320aeda9f0261"
