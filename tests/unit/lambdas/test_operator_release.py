"""An operator releases what an ended incident left contained: its own, once it has ended, on the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import Mode, gpu_subject, instance_subject

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
BY = {"by": "alex", "reason": "memory replaced"}


@pytest.fixture
def kept(driver: Driver) -> Incident:
    """A human said no and kept the cordon."""
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.answer(driver.until_asked(incident), "keep")
    driver.play(incident, "approval_answered")
    ended = driver.world.incidents.get(incident.id)
    assert ended.state is State.REJECTED_KEPT and driver.world.kubernetes.nodes[NODE].unschedulable
    return ended


def release(driver: Driver, incident: Incident, asked: Any = BY) -> dict[str, Any]:
    return driver.step("resume", incident, release=asked)


def states(driver: Driver) -> set[str | None]:
    subjects = (instance_subject(SUSPECT), gpu_subject(builder.places()[3].gpu_uuid or ""))
    return {driver.world.quarantine.state(s) for s in subjects}


def test_its_cordon_and_its_quarantine_are_released_on_the_record(driver: Driver, kept: Incident) -> None:
    assert release(driver, kept)["outcome"] == "released"
    node = driver.world.kubernetes.nodes[NODE]
    assert not node.unschedulable and node.annotations == {} and states(driver) == {"released"}
    assert (kept.id, "released by an operator", "alex: memory replaced") in driver.world.incidents.trail
    assert driver.world.incidents.get(kept.id).state is State.REJECTED_KEPT
    assert release(driver, kept)["outcome"] == "released"


@pytest.mark.parametrize("asked", [{}, None, {"by": "alex", "reason": " "}, {"by": 7, "reason": "x"}])
def test_without_who_and_why_nothing_is_released(driver: Driver, kept: Incident, asked: Any) -> None:
    assert release(driver, kept, asked)["outcome"] == "refused"
    assert driver.world.kubernetes.nodes[NODE].unschedulable and states(driver) == {"held"}


@pytest.mark.parametrize(
    "control", [Control(None, kill_switch=True), Control(Mode.OBSERVE, kill_switch=False)]
)
def test_kill_switch_and_mode_hold_for_operators_too(
    driver: Driver, kept: Incident, control: Control
) -> None:
    driver.world.controls.control = control
    assert release(driver, kept)["outcome"] == "human"
    assert driver.world.kubernetes.nodes[NODE].unschedulable and states(driver) == {"held"}


def test_an_open_incident_is_not_released_by_hand(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.until_asked(incident)
    before = driver.world.incidents.get(incident.id)
    assert release(driver, incident)["outcome"] == "refused"
    assert driver.world.kubernetes.nodes[NODE].unschedulable and states(driver) == {"held"}
    assert before == driver.world.incidents.get(incident.id), "the question that is open goes on"


def test_a_fire_drill_has_nothing_to_be_released(driver: Driver, kept: Incident) -> None:
    rows = driver.world.incidents.rows
    rows[kept.id] = replace(rows[kept.id], synthetic=True)
    before = repr(driver.world.quarantine.rows)
    assert release(driver, kept)["outcome"] == "refused"
    assert repr(driver.world.quarantine.rows) == before


def test_what_a_human_cordoned_meanwhile_stays(driver: Driver, kept: Incident) -> None:
    driver.world.kubernetes.change(NODE, annotations={})
    assert "left as it is" in release(driver, kept)["story"]
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_what_another_incident_holds_stays_held(driver: Driver, kept: Incident) -> None:
    driver.world.quarantine.rows[instance_subject(SUSPECT)]["incident_id"] = "another"
    assert "held by another incident" in release(driver, kept)["story"]
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "held"
