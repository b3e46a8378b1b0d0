"""A requested replacement keeps its lock until it is verified, or ends degraded with an open breaker."""

from __future__ import annotations

import pytest

from lambdas.domain.incident import Incident, State, execution_name
from lambdas.steps.replace import REPLACE_LOCK
from tests.events import builder

from .drive import Driver
from .looks import look

SUSPECT = builder.INSTANCES[1]
TIMED_OUT = {"Error": "Sandbox.Timedout", "Cause": "x"}


def degraded(driver: Driver, incident: Incident) -> bool:
    world = driver.world
    ended = world.incidents.get(incident.id).state is State.REPLACEMENT_DEGRADED
    return ended and world.controls.breaker().open and not world.controls.locks


def die_after_the_call(driver: Driver, incident: Incident) -> None:
    driver.killed("replace", incident, driver.world.incidents, "conclude")
    assert driver.world.cluster.calls == [("replace", SUSPECT)]


def test_one_whose_function_died_after_the_call_is_verified_under_its_lock(
    driver: Driver, approved: Incident
) -> None:
    die_after_the_call(driver, approved)
    assert driver.step("verify", approved)["outcome"] == "waiting"
    assert driver.world.controls.locks == {REPLACE_LOCK: approved.id}
    driver.world.cluster.swap(SUSPECT)
    assert driver.step("verify", approved)["outcome"] == "verified"
    assert not driver.world.controls.locks and not driver.world.controls.breaker().open


@pytest.mark.parametrize("verified", [0, 1])
def test_one_that_only_a_human_can_end_is_degraded_and_opens_the_breaker(
    driver: Driver, approved: Incident, verified: int
) -> None:
    driver.step("replace", approved)
    for _ in range(verified):
        driver.step("verify", approved)
    driver.step("request_approval", approved, notice="human", seen=TIMED_OUT)
    assert "replacement degraded" in driver.world.mail.sent[-1][1]
    driver.step("resume", approved)
    assert degraded(driver, approved)


def test_an_abandoned_one_is_degraded_and_opens_the_breaker(driver: Driver, approved: Incident) -> None:
    die_after_the_call(driver, approved)
    driver.world.executions.ended[execution_name(approved)] = "FAILED"
    look(driver)
    assert degraded(driver, approved)


def test_one_that_broke_off_before_its_call_is_a_humans_and_opens_no_breaker(
    driver: Driver, approved: Incident
) -> None:
    assert driver.step("verify", approved)["outcome"] == "human"
    driver.step("request_approval", approved, notice="human", seen=TIMED_OUT)
    driver.step("resume", approved)
    assert driver.world.incidents.get(approved.id).state is State.HANDED_TO_HUMAN
    assert not driver.world.controls.breaker().open and not driver.world.cluster.calls


def test_one_that_was_verified_and_then_broke_off_is_not_degraded(driver: Driver, approved: Incident) -> None:
    driver.step("replace", approved)
    driver.world.cluster.swap(SUSPECT)
    driver.step("verify", approved)
    driver.world.executions.ended[execution_name(approved)] = "FAILED"
    look(driver)
    assert driver.world.incidents.get(approved.id).state is State.HANDED_TO_HUMAN
    assert not driver.world.controls.breaker().open
