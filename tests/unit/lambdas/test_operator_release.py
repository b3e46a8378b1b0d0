"""An operator releases what an ended incident left contained: its own, once it has ended, on the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas.domain.errors import UnavailableError
from lambdas.domain.incident import Incident, State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import Mode, gpu_subject, instance_subject

from .drive import Driver
from .test_signed_route import CALLER, call

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
    driver.world.quarantine.rows[instance_subject(SUSPECT)]["holders"].add("another")
    assert "held by another incident" in release(driver, kept)["story"]
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "held"


# by the signed route


def asked_of_the_route(incident: Incident, reason: object = "memory replaced") -> tuple[int, dict[str, Any]]:
    return call("POST /incidents/{incident_id}/release", incident.id, {"reason": reason})


def test_a_signed_release_is_recorded_with_the_callers_identity(driver: Driver, kept: Incident) -> None:
    status, answer = asked_of_the_route(kept)
    assert (status, answer["result"]) == (200, "released") and NODE in answer["story"]
    assert not driver.world.kubernetes.nodes[NODE].unschedulable and states(driver) == {"released"}
    said = (kept.id, "released by an operator", f"{CALLER}: memory replaced")
    assert said in driver.world.incidents.trail


@pytest.mark.parametrize("reason", ["", " ", None, ["x"], 7])
def test_a_signed_release_needs_a_reason(driver: Driver, kept: Incident, reason: object) -> None:
    assert asked_of_the_route(kept, reason)[0] == 400
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_body_cannot_say_who_releases(driver: Driver, kept: Incident) -> None:
    body = {"reason": "looked at it", "by": "somebody else", "release": {"by": "x", "reason": "y"}}
    assert call("POST /incidents/{incident_id}/release", kept.id, body)[0] == 200
    (said,) = [r for _, what, r in driver.world.incidents.trail if what == "released by an operator"]
    assert said == f"{CALLER}: looked at it"


def test_a_signed_release_without_a_caller_of_an_open_incident_or_under_the_kill_switch_does_nothing(
    driver: Driver, kept: Incident
) -> None:
    body = {"reason": "looked at it"}
    assert call("POST /incidents/{incident_id}/release", kept.id, body, caller=None)[0] == 403
    assert call("POST /incidents/{incident_id}/release", "0" * 16, body)[0] == 404
    rows = driver.world.incidents.rows
    rows[kept.id] = replace(rows[kept.id], state=State.AWAITING_APPROVAL)
    assert asked_of_the_route(kept)[0] == 409
    rows[kept.id] = replace(rows[kept.id], state=State.REJECTED_KEPT)
    driver.world.controls.control = Control(None, kill_switch=True)
    status, answer = asked_of_the_route(kept)
    assert status == 409 and "kill switch" in answer["error"]
    assert driver.world.kubernetes.nodes[NODE].unschedulable and states(driver) == {"held"}


def test_a_release_that_broke_off_can_be_asked_for_again(driver: Driver, kept: Incident) -> None:
    driver.world.releaser.error = UnavailableError("the release broke off")
    assert asked_of_the_route(kept)[0] == 503
    driver.world.releaser.error = None
    assert asked_of_the_route(kept)[0] == 200
