"""Transient verdicts: the deep check decides, and what becomes of node, job and incident afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas.domain.incident import State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import (
    Verdict,
    instance_subject,
)

from .drive import Driver

SUSPECT = builder.INSTANCES[1]  # ranks 2 and 3
NODE = f"hyperpod-{SUSPECT}"


def transient(driver: Driver) -> str:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.pair(3, Verdict.TRANSIENT)))
    return incident.id


def check_ends(driver: Driver, label: str, after: int = 3) -> None:
    """HyperPod's side of a deep check: InProgress, and `label` when it was looked at `after` times."""
    looks = 0

    def on_state(state: str) -> None:
        nonlocal looks
        looks += state == "confirm"
        if looks > 1:
            done = looks > after
            status = "Running" if done else "DeepHealthCheckInProgress"
            driver.world.cluster.set_status(SUSPECT, status)
            labels = {"sagemaker.amazonaws.com/deep-health-check-status": label if done else "InProgress"}
            driver.world.kubernetes.change(NODE, labels=labels)
        if state == "resume" and not driver.world.kubernetes.nodes[NODE].unschedulable:
            driver.job_returns()

    driver.on_state = on_state  # type: ignore[method-assign]


def test_a_transient_verdict_is_released_when_the_deep_check_passes(driver: Driver) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    driver.play(driver.world.incidents.get(incident_id), "locate")
    incident = driver.world.incidents.get(incident_id)
    assert incident.state is State.RELEASED and incident.decided_rows == ("V2",)
    assert driver.world.cluster.calls == [("check", SUSPECT)]
    node = driver.world.kubernetes.nodes[NODE]
    assert not node.unschedulable and node.annotations == {}
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "released"
    assert not driver.world.mail.sent


def test_a_registration_that_nobody_verified_does_not_bring_the_job_back(driver: Driver) -> None:
    seats = tuple(replace(s, pod_uid="made-up") for s in builder.places())
    driver.register(builder.registration(1, seats, replace(builder.JOB, attempt=9), resumed_from_step=999))
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    driver.play(driver.world.incidents.get(incident_id), "locate")
    assert driver.world.incidents.get(incident_id).resumed_from_step == 20


def test_a_failed_deep_check_asks_for_replacement(driver: Driver) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Failed")
    link = driver.until_asked(driver.world.incidents.get(incident_id))
    assert link
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_transient_verdict_that_repeats_asks_for_replacement_without_a_check(driver: Driver) -> None:
    """The GPU's history counts, also under another instance."""
    first = transient(driver)
    check_ends(driver, "Passed")
    driver.play(driver.world.incidents.get(first), "locate")
    driver.world.cluster.calls.clear()
    seats = builder.places()
    alarm = builder.alarm(
        builder.pair(3, Verdict.TRANSIENT), step=50, job=driver.world.incidents.get(first).job
    )
    assert seats[3].gpu_uuid
    (second,) = driver.alarm(alarm)
    assert driver.until_asked(second)
    assert driver.world.cluster.calls == []


def test_a_stuck_deep_check_is_bounded_and_ends_with_a_human_and_the_node_cordoned(driver: Driver) -> None:
    incident_id = transient(driver)
    driver.play(driver.world.incidents.get(incident_id), "locate")
    incident = driver.world.incidents.get(incident_id)
    assert incident.state is State.HEALTHCHECK_STUCK
    assert "stuck" in incident.human_reason
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "held"
    assert len(driver.world.mail.sent) == 1
    assert not driver.world.controls.locks
    assert driver.waited_s < 4 * 3600  # a18: bounded in time, and in events of the history
    assert driver.path.count("confirm") < 150


def test_running_is_not_passed_when_the_check_never_started(driver: Driver) -> None:
    incident_id = transient(driver)
    driver.world.cluster.start_health_check = lambda *_: None  # type: ignore[method-assign]
    driver.play(driver.world.incidents.get(incident_id), "locate")
    incident = driver.world.incidents.get(incident_id)
    assert incident.state is State.HANDED_TO_HUMAN
    assert "never_started" in incident.human_reason


def test_a16_a_node_that_vanishes_during_the_check_is_not_replaced_again(driver: Driver) -> None:
    incident_id = transient(driver)

    def on_state(state: str) -> None:
        if driver.world.cluster.calls:
            driver.world.cluster.members.pop(SUSPECT, None)

    driver.on_state = on_state  # type: ignore[method-assign]
    driver.play(driver.world.incidents.get(incident_id), "locate")
    assert driver.world.incidents.get(incident_id).state is State.REPLACED_BY_HYPERPOD
    assert driver.world.cluster.calls == [("check", SUSPECT)]


def test_the_kill_switch_keeps_what_was_to_be_released(driver: Driver) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    assert driver.play(driver.world.incidents.get(incident_id), "locate", stop="resume") == "resume"
    driver.world.controls.control = Control(None, kill_switch=True)
    driver.play(driver.world.incidents.get(incident_id), "resume")
    closed = driver.world.incidents.get(incident_id)
    assert closed.state is State.HANDED_TO_HUMAN and "kill switch" in closed.human_reason
    ((_, _, body),) = driver.world.mail.sent  # a node that was to go back to work, and did not
    assert "kill switch" in body and f"sdc release {incident_id}" in body
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "held"


def test_a_job_that_does_not_come_back_closes_the_incident_all_the_same(driver: Driver) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    driver.job_returns = lambda *_, **__: None  # type: ignore[method-assign]
    driver.play(driver.world.incidents.get(incident_id), "locate")
    closed = driver.world.incidents.get(incident_id)
    assert closed.state is State.RELEASED and closed.job_back is False
    assert "was uncordoned" in driver.stories[-1] and "did not start again" in driver.stories[-1]


def test_a_job_that_resumed_inside_the_suspect_window_is_pointed_out(driver: Driver) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    returns = driver.job_returns
    driver.job_returns = lambda *_, **__: returns(resumed_from=30)  # type: ignore[method-assign]
    driver.play(driver.world.incidents.get(incident_id), "locate")
    assert "from step 30, the agent had chosen 20" in driver.stories[-1]


def test_the_kill_switch_thrown_during_the_uncordon_keeps_the_quarantine(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident_id = transient(driver)
    check_ends(driver, "Passed")
    driver.play(driver.world.incidents.get(incident_id), "locate", stop="resume")
    patch = driver.world.kubernetes.patch_node

    def patch_then_halt(*args: Any, **kwargs: Any) -> None:
        patch(*args, **kwargs)
        driver.world.controls.control = Control(None, kill_switch=True)

    monkeypatch.setattr(driver.world.kubernetes, "patch_node", patch_then_halt)
    driver.play(driver.world.incidents.get(incident_id), "resume")
    assert driver.world.quarantine.state(instance_subject(SUSPECT)) == "held"
