"""The same alarm in the next attempt, while the released incident only waits for the job: decided again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.errors import ConflictError, RefusedError
from lambdas.domain.incident import Incident, State
from lambdas.domain.world import KubePod
from tests.events import builder
from training_agent.contract import Alarm, Verdict, delivery_key, instance_subject, occurrence_key

from .drive import Driver

SUSPECT = builder.INSTANCES[1]
NODE = f"hyperpod-{SUSPECT}"
ALARM = builder.alarm(builder.pair(3, Verdict.TRANSIENT))
AGAIN = replace(ALARM, job=replace(builder.JOB, attempt=2))


@pytest.fixture
def released(driver: Driver) -> Incident:
    """V2, let go; resume waits for the job."""
    driver.register()
    (incident,) = driver.alarm(ALARM)
    assert driver.play(incident, "locate", stop="confirm") == "confirm"
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], state=State.DECIDED, closing=State.RELEASED)
    assert driver.step("resume", incident)["outcome"] == "waiting"
    assert driver.world.incidents.get(incident.id).state is State.CLOSING
    return incident


def comes_again(driver: Driver, alarm: Alarm = AGAIN) -> Incident:
    """The job is back on the released node and hit once more."""
    driver.job_returns(attempt=alarm.job.attempt)
    (incident,) = driver.alarm(alarm)
    return incident


def test_an_alarm_that_comes_again_before_the_close_is_decided_again(
    driver: Driver, released: Incident
) -> None:
    assert driver.play(comes_again(driver), "locate") == "joined"
    assert driver.step("resume", released)["outcome"] == "reopened"
    assert driver.until_asked_from(released, "contain")
    incident = driver.world.incidents.get(released.id)
    assert incident.state is State.AWAITING_APPROVAL
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    row = driver.world.quarantine.rows[instance_subject(SUSPECT)]
    assert (row["state"], row["delivery_key"]) == ("held", occurrence_key(delivery_key(AGAIN), 2))


def test_an_alarm_that_is_located_only_after_the_close_is_decided_as_a_repeat(
    driver: Driver, released: Incident
) -> None:
    second = comes_again(driver)
    assert driver.step("resume", released)["outcome"] == "closed"
    assert driver.until_asked(second)
    assert driver.world.incidents.get(second.id).repeats


def test_an_alarm_that_comes_again_while_the_incident_closes_is_tried_until_the_gate_is_free(
    driver: Driver, released: Incident
) -> None:
    second = comes_again(driver)
    rows = driver.world.incidents.rows
    rows[released.id] = replace(rows[released.id], state=State.RELEASED)
    with pytest.raises(ConflictError):
        driver.step("locate", second)


def test_a_node_that_is_released_a_second_time_is_uncordoned_a_second_time(
    driver: Driver, released: Incident
) -> None:
    driver.play(comes_again(driver), "locate")
    driver.step("resume", released)
    link = driver.until_asked_from(released, "contain")
    driver.answer(link, "release")
    assert driver.step("resume", released)["outcome"] == "waiting"  # for a third attempt
    assert not driver.world.kubernetes.nodes[NODE].unschedulable
    driver.job_returns(attempt=3)
    assert driver.step("resume", released)["outcome"] == "closed"


def test_a_containment_that_breaks_off_after_the_cordon_can_be_released_by_hand(
    driver: Driver, released: Incident
) -> None:
    """The row of the uncordon before says "uncordoned": the node says what is so now."""
    driver.play(comes_again(driver), "locate")
    driver.step("resume", released)

    def refused(pod: KubePod) -> None:
        raise RefusedError("a disruption budget stands in the way")

    driver.monkeypatch.setattr(driver.world.kubernetes, "evict", refused)
    driver.play(released, "contain")
    assert driver.world.incidents.get(released.id).state is State.HANDED_TO_HUMAN
    assert driver.world.kubernetes.nodes[NODE].unschedulable
    answer = driver.step("resume", released, release={"by": "alex", "reason": "memory replaced"})
    assert answer["outcome"] == "released"
    assert not driver.world.kubernetes.nodes[NODE].unschedulable


def test_a_duplicate_of_the_first_attempt_is_only_kept(driver: Driver, released: Incident) -> None:
    assert driver.alarm(ALARM) == []
