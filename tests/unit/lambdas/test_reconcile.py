"""The dead-man's look: what is stuck, silent, lost or left behind is seen, and nothing is touched for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain.approval import ApprovalState
from lambdas.domain.errors import CallbackGoneError, UnavailableError
from lambdas.domain.incident import Incident, State, execution_name
from lambdas.domain.times import stamp
from lambdas.steps.register import JOB_UID_LABEL
from tests.events import builder

from .drive import Driver
from .fakes import START
from .looks import later, look

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


def test_a_quiet_cluster_is_quiet(driver: Driver) -> None:
    numbers = look(driver)
    assert numbers.pop("reconcile_done") == 1
    assert not any(numbers.values())
    assert driver.world.numbers.put_so_far["reconcile_done"] == 1


def test_open_incidents_and_their_age_are_numbers(driver: Driver, incident: Incident) -> None:
    driver.play(incident, "locate", stop="request_approval")
    later(driver, minutes=10)
    numbers = look(driver)
    assert numbers["incidents_open"] == 1 and numbers["incidents_without_progress"] == 0
    assert 600 <= numbers["oldest_open_incident_seconds"] < 610
    state = driver.world.incidents.get(incident.id).state.value.lower()
    assert {n: v for n, v in numbers.items() if n.startswith("incidents_in_")} == {f"incidents_in_{state}": 1}


def test_an_incident_without_progress_is_seen(driver: Driver, incident: Incident) -> None:
    driver.play(incident, "locate", stop="decide")
    later(driver, hours=2)
    assert look(driver)["incidents_without_progress"] == 1
    assert driver.world.incidents.get(incident.id).state is State.CONTAINED  # its execution runs: not touched


def test_waiting_for_a_human_is_progress_until_the_wait_must_have_ended(
    driver: Driver, incident: Incident
) -> None:
    driver.until_asked(incident)
    later(driver, hours=2.5)
    assert look(driver)["incidents_without_progress"] == 0
    later(driver, hours=1)
    assert look(driver)["incidents_without_progress"] == 1


def test_a20_an_unknown_outcome_is_read_from_the_world_and_never_called_again(
    driver: Driver, incident: Incident
) -> None:
    driver.answer(driver.until_asked(incident))
    driver.killed("replace", incident, driver.world.incidents, "conclude")
    assert look(driver)["unknown_outcomes"] == 1
    driver.world.cluster.members.pop(SUSPECT)
    driver.world.executions.ended[execution_name(incident)] = "FAILED"
    look(driver)
    assert driver.world.incidents.get(incident.id).state is State.REPLACEMENT_DEGRADED
    effect = driver.world.incidents.effect(incident.id, "replace")
    assert effect is not None and effect.result == f"ISSUED_UNKNOWN: {SUSPECT} is gone"
    assert driver.world.cluster.calls == [("replace", SUSPECT)] and not driver.world.controls.locks


def test_a_decision_that_was_not_delivered_is_delivered(driver: Driver, incident: Incident) -> None:
    link = driver.until_asked(incident)
    driver.world.callback.error = UnavailableError("no answer")
    assert driver.answer(link)["statusCode"] == 503
    assert look(driver)["decisions_delivered"] == 0
    driver.world.callback.error = None
    assert look(driver)["decisions_delivered"] == 1
    (row,) = driver.world.approvals.rows.values()
    assert row.state is ApprovalState.DELIVERED
    assert driver.world.callback.answers[0][1]["outcome"] == "approved"
    assert look(driver)["decisions_delivered"] == 0


def test_a_pending_question_is_never_answered_by_the_reconciler(driver: Driver, incident: Incident) -> None:
    driver.until_asked(incident)
    look(driver)
    assert not driver.world.callback.answers


def test_a_decision_nobody_waits_for_is_left_to_the_timeout_branch(
    driver: Driver, incident: Incident
) -> None:
    link = driver.until_asked(incident)
    driver.world.callback.error = CallbackGoneError("TaskTimedOut")
    driver.answer(link)
    assert look(driver)["decisions_delivered"] == 0
    assert driver.step("request_approval", incident, timed_out=True)["outcome"] == "approved"


def test_a_cordon_of_ours_without_an_incident_is_reported_and_left(driver: Driver) -> None:
    marks = {"training.sdc/cordoned-by": "0123456789abcdef"}
    driver.world.kubernetes.change(NODE, unschedulable=True, annotations=marks, set_by_us=True)
    assert look(driver)["cordons_without_incident"] == 1
    assert driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_cordon_that_its_incident_should_have_released_is_reported(
    driver: Driver, incident: Incident
) -> None:
    driver.play(incident, "locate", stop="request_approval")
    assert look(driver)["cordons_without_incident"] == 0
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=State.RELEASED)
    assert look(driver)["cordons_without_incident"] == 1


def test_somebody_elses_cordon_is_nobodys_business(driver: Driver) -> None:
    driver.world.kubernetes.change(NODE, unschedulable=True)
    assert look(driver)["cordons_without_incident"] == 0


def test_a_topic_without_a_confirmed_approver_is_a_number(driver: Driver) -> None:
    driver.world.mail.confirmed = ()
    assert look(driver)["approvers_without_confirmation"] == 1


def running(driver: Driver, since: timedelta, **labels: str) -> None:
    """The job's pods have run so long."""
    for key, pod in driver.world.kubernetes.pods.items():
        driver.world.kubernetes.pods[key] = replace(
            pod, started_at=stamp(driver.world.clock.at - since), labels={**pod.labels, **labels}
        )


def test_a_job_without_a_heartbeat_is_a_number(driver: Driver) -> None:
    running(driver, timedelta(hours=1), **{"training.sdc/job-name": "llama-tiny"})
    assert look(driver)["jobs_without_heartbeat"] == 1
    driver.world.numbers.alive = frozenset({"llama-tiny"})
    assert look(driver)["jobs_without_heartbeat"] == 0


def test_a_job_that_has_just_started_has_time_for_its_first_heartbeat(driver: Driver) -> None:
    running(driver, timedelta(minutes=5), **{"training.sdc/job-name": "llama-tiny"})
    assert look(driver)["jobs_without_heartbeat"] == 0


def test_a_job_that_is_held_is_expected_to_be_silent(driver: Driver, incident: Incident) -> None:
    running(driver, timedelta(hours=1), **{"training.sdc/job-name": "llama-tiny"})
    assert look(driver)["jobs_without_heartbeat"] == 0


def test_pods_of_other_workloads_are_no_jobs_of_ours(driver: Driver) -> None:
    running(driver, timedelta(hours=1))
    for key, pod in driver.world.kubernetes.pods.items():
        driver.world.kubernetes.pods[key] = replace(pod, labels={"app": "web"})
    assert all(JOB_UID_LABEL not in p.labels for p in driver.world.kubernetes.pods.values())
    assert look(driver)["jobs_without_heartbeat"] == 0


def test_an_open_breaker_is_a_number(driver: Driver) -> None:
    driver.world.controls.open_breaker("over budget", "x", START)
    assert look(driver)["breaker_open"] == 1


def test_one_look_that_fails_does_not_hinder_the_others(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down() -> tuple[()]:
        raise UnavailableError("Kubernetes")

    monkeypatch.setattr(driver.world.kubernetes, "cordoned", down)
    driver.world.mail.confirmed = ()
    numbers = look(driver)
    assert numbers["reconcile_failed_looks"] == 1 and numbers["approvers_without_confirmation"] == 1
    assert numbers["reconcile_done"] == 0, (
        "Kubernetes unreachable: nobody judges heartbeats, and that is said"
    )


def test_ended_incidents_are_forgotten_after_an_hour(driver: Driver, incident: Incident) -> None:
    driver.setting("MODE", "observe")
    driver.play(incident, "locate")
    look(driver)
    assert driver.world.incidents.open_incidents() == (incident.id,)
    later(driver, hours=2)
    look(driver)
    assert driver.world.incidents.open_incidents() == ()
