"""A yes on which nothing could be done: a human is asked once more, with a question of its own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from lambdas.domain.approval import ApprovalState
from lambdas.domain.incident import EffectState, Incident, State
from lambdas.domain.world import ReplaceAnswer
from tests.events import builder

from .drive import Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
FAILED_INSIDE = ReplaceAnswer(False, "InternalServerError", "no")


def asked_again(driver: Driver, incident: Incident) -> str:
    assert driver.play(incident, "contain", stop="request_approval") == "request_approval"
    return driver.ask(incident, token="token-2")


def calls(driver: Driver) -> int:
    return len(driver.world.cluster.calls)


def test_a24_after_an_internal_error_a_human_is_asked_once_more_and_told_why(
    driver: Driver, approved: Incident
) -> None:
    driver.world.cluster.on_replace = FAILED_INSIDE
    assert driver.step("replace", approved)["outcome"] == "reopened"
    assert not driver.world.controls.locks
    link = asked_again(driver, approved)
    assert "HyperPod failed inside" in " ".join(driver.world.mail.sent[-1][2].split())
    assert driver.step("replace", approved)["outcome"] == "human" and calls(driver) == 1, "on the old yes"
    driver.world.cluster.on_replace = ReplaceAnswer(accepted=True)
    driver.answer(link)
    assert driver.step("replace", approved)["outcome"] == "replaced"
    assert calls(driver) == 2 and len(driver.world.approvals.rows) == 2
    assert len(driver.world.controls.replaced["gpu"]) == 1


def test_a24_a_second_internal_error_is_a_humans(driver: Driver, approved: Incident) -> None:
    driver.world.cluster.on_replace = FAILED_INSIDE
    driver.step("replace", approved)
    driver.answer(asked_again(driver, approved))
    driver.play(approved, "replace")
    ended = driver.world.incidents.get(approved.id)
    assert ended.state is State.HANDED_TO_HUMAN and "a second time" in ended.human_reason
    assert calls(driver) == 2


def test_a20_a_crash_after_the_internal_error_asks_anew_and_does_not_call_on_the_old_yes(
    driver: Driver, approved: Incident
) -> None:
    driver.world.cluster.on_replace = FAILED_INSIDE
    driver.killed("replace", approved, driver.world.controls, "unlock")
    effect = driver.world.incidents.effect(approved.id, "replace")
    assert effect is not None and effect.state is EffectState.RESULT
    assert driver.step("replace", approved)["outcome"] == "reopened"
    assert calls(driver) == 1 and driver.world.incidents.get(approved.id).state is State.LOCATED


def test_a_yes_that_the_queue_outlived_is_asked_for_again(driver: Driver, approved: Incident) -> None:
    """Approved in time, and another replacement took longer than the approval was good for."""
    driver.world.controls.locks["replacement"] = "another"
    assert driver.step("replace", approved)["outcome"] == "busy"
    driver.world.clock.at = START + timedelta(hours=3)
    assert driver.step("replace", approved)["outcome"] == "reopened"
    del driver.world.controls.locks["replacement"]
    link = asked_again(driver, approved)
    old = driver.world.approvals.rows[f"{approved.id}-1"]
    assert old.state is ApprovalState.SUPERSEDED and calls(driver) == 0
    driver.answer(link)
    assert driver.step("replace", approved)["outcome"] == "replaced"


def test_t20_a_row_that_names_another_instance_than_its_node_replaces_nothing(
    driver: Driver, approved: Incident
) -> None:
    """Edited by hand in the incident and in the approval alike, and the other node cordoned in its name."""
    other, rows = builder.INSTANCES[0], driver.world.incidents.rows
    (target,) = rows[approved.id].targets
    rows[approved.id] = replace(rows[approved.id], targets=(replace(target, instance_id=other),))
    approvals = driver.world.approvals.rows
    approvals[f"{approved.id}-1"] = replace(approvals[f"{approved.id}-1"], instance_id=other)
    assert driver.step("replace", approved)["outcome"] == "human"
    assert "another instance" in driver.stories[-1] and calls(driver) == 0
