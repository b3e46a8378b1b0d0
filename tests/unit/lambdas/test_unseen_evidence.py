"""A row that holds nobody lets go what it was decided on, and nothing that came in behind its back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    delivery_key,
    job_subject,
    occurrence_key,
)

from .drive import Driver

JOB = job_subject(builder.JOB.uid)
DATA = builder.alarm(
    Finding(FindingKind.NONFINITE, involved=builder.places()[3:4], reproduced=True), check=Check.NONFINITE
)
REDUCED = builder.alarm(Finding(FindingKind.REDUCED), check=Check.NONFINITE, step=40)
OTHER_GROUP = replace(DATA, findings=REDUCED.findings, group="3 ranks from 3 on (0a1b2c3d)")


@pytest.fixture
def told(driver: Driver) -> Incident:
    """N0: the job need not wait; the people are about to be told."""
    driver.register()
    (incident,) = driver.alarm(DATA)
    assert driver.play(incident, "locate", stop="tell_human") == "tell_human"
    return incident


def joins(driver: Driver, alarm: Alarm) -> None:
    (second,) = driver.alarm(alarm)
    assert driver.alarm(alarm) == []  # delivered once more
    assert driver.play(second, "locate") == "joined"


def freed(driver: Driver, alarm: Alarm) -> bool:
    row = driver.world.quarantine.rows[JOB]
    return row["state"] == "released" and occurrence_key(delivery_key(alarm), 1) in row["delivery_keys"]


@pytest.mark.parametrize("alarm", [REDUCED, OTHER_GROUP], ids=["a later step", "another group, same step"])
def test_evidence_behind_a_row_that_holds_nobody_is_decided_with_and_not_let_go(
    driver: Driver, told: Incident, alarm: Alarm
) -> None:
    joins(driver, alarm)
    assert driver.play(told, "tell_human", stop="request_approval") == "request_approval"
    incident = driver.world.incidents.get(told.id)
    assert incident.decided_rows == ("N0", "R1") and not incident.undecided
    assert freed(driver, DATA) is freed(driver, alarm) is False
    assert driver.world.quarantine.rows[JOB]["state"] == "held"


def test_a_containment_that_breaks_off_under_an_older_row_that_held_nobody_lets_nothing_go(
    driver: Driver, told: Incident
) -> None:
    joins(driver, REDUCED)
    driver.play(told, "tell_human", stop="contain")
    driver.world.controls.control = Control(None, kill_switch=True)
    driver.play(told, "contain")
    driver.world.controls.control = Control(None, kill_switch=False)
    ended = driver.world.incidents.get(told.id)
    assert (ended.state, ended.decision_row) == (State.HANDED_TO_HUMAN, "N0")
    assert not freed(driver, REDUCED)
    assert len(driver.world.mail.sent) == 2, "of the data, and of what could not be contained"


def test_a_hold_whose_decision_broke_off_stays_whatever_the_older_row_says(
    driver: Driver, told: Incident
) -> None:
    joins(driver, REDUCED)
    driver.play(told, "tell_human", stop="decide")
    assert driver.world.quarantine.rows[JOB]["state"] == "held"
    driver.play(told, "tell_human")
    assert driver.world.incidents.get(told.id).state is State.HANDED_TO_HUMAN
    assert driver.world.quarantine.rows[JOB]["state"] == "held"


def test_what_came_in_and_changes_nothing_is_let_go_with_the_rest(driver: Driver, told: Incident) -> None:
    again = replace(DATA, step=41)
    joins(driver, again)
    driver.play(told, "tell_human")
    assert driver.world.incidents.get(told.id).state is State.HANDED_TO_HUMAN
    assert freed(driver, again) and freed(driver, DATA)
    assert len(driver.world.mail.sent) == 2
