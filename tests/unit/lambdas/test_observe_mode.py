"""Observe mode is known before any incident, and no incident claims or does more than it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.errors import HaltedError, UnavailableError
from lambdas.domain.incident import State
from lambdas.domain.policy import Control
from tests.events import builder
from training_agent.contract import Mode

from .drive import Driver

NODE = f"hyperpod-{builder.INSTANCES[1]}"
ALARM = builder.alarm(builder.culprit(3))


@pytest.mark.parametrize("deployed", ["observe", "contain", "replace"])
def test_the_mode_stands_in_the_table_from_the_first_registration_on(driver: Driver, deployed: str) -> None:
    """Agents hold while the row is missing: an alarm that is rejected or located nowhere writes none."""
    driver.setting("MODE", deployed)
    driver.register()
    assert driver.world.quarantine.mode is Mode(deployed)


def test_the_mode_that_registration_writes_is_the_lowered_one(driver: Driver) -> None:
    driver.world.controls.control = Control(Mode.OBSERVE, kill_switch=False)
    driver.register()
    assert driver.world.quarantine.mode is Mode.OBSERVE


def test_a_foreign_registration_writes_no_mode(driver: Driver) -> None:
    driver.register(builder.registration(1, cluster="other"))
    assert driver.world.quarantine.mode is None


def test_a_mode_that_cannot_be_read_keeps_no_registration_out(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> Control:
        raise HaltedError("the control table's mode cannot be read")

    monkeypatch.setattr(driver.world.controls, "read", unreadable)
    assert driver.send(builder.event(builder.registration(1)), to=handlers.register) == {
        "batchItemFailures": []
    }
    assert driver.world.registrations.rows and driver.world.quarantine.mode is None


def test_a_table_that_does_not_answer_delivers_the_registration_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> None:
        raise UnavailableError("table")

    monkeypatch.setattr(driver.world.quarantine, "put_mode", down)
    answer = driver.send(builder.event(builder.registration(1)), to=handlers.register)
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}]}


def unlocatable(driver: Driver) -> str:
    """The pod of the accused rank is another one than registered."""
    driver.add_pod("llama-tiny-1", "other-pod", builder.INSTANCES[1])
    driver.register()
    (incident,) = driver.alarm(ALARM)
    assert driver.play(incident, "locate") == "closed"
    return incident.id


def test_an_incident_that_cannot_be_located_ends_observed_in_observe_mode(driver: Driver) -> None:
    driver.setting("MODE", "observe")
    incident = driver.world.incidents.get(unlocatable(driver))
    assert incident.state is State.OBSERVED and "could not be verified" in incident.human_reason
    assert "observed" in driver.world.mail.sent[-1][1]


def test_an_incident_that_cannot_be_located_is_a_humans_in_the_other_modes(driver: Driver) -> None:
    assert driver.world.incidents.get(unlocatable(driver)).state is State.HANDED_TO_HUMAN


def test_a_containment_that_broke_off_is_never_called_observed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held rows stand, then the mode is lowered: something was touched, whatever came of the rest."""
    driver.register()
    (incident,) = driver.alarm(ALARM)
    hold = driver.world.quarantine.hold

    def hold_then_lower(*args: Any, **kwargs: Any) -> None:
        hold(*args, **kwargs)
        driver.world.controls.control = Control(Mode.OBSERVE, kill_switch=False)

    monkeypatch.setattr(driver.world.quarantine, "hold", hold_then_lower)
    driver.play(incident, "locate")
    closed = driver.world.incidents.get(incident.id)
    assert closed.touched and closed.state is State.HANDED_TO_HUMAN


def test_the_notice_goes_out_when_the_mode_cannot_be_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> Control:
        raise HaltedError("the control table's mode cannot be read")

    monkeypatch.setattr(driver.world.controls, "read", unreadable)
    incident = driver.world.incidents.get(unlocatable(driver))
    assert incident.state is State.HANDED_TO_HUMAN and driver.world.mail.sent


def test_a_drill_still_ends_as_a_drill(driver: Driver) -> None:
    driver.setting("MODE", "observe")
    driver.register()
    (incident,) = driver.alarm(ALARM)
    rows = driver.world.incidents.rows
    rows[incident.id] = replace(rows[incident.id], synthetic=True)
    driver.step("request_approval", incident, notice="human", seen={"story": "x"})
    assert driver.world.incidents.get(incident.id).closing is State.CLOSED
