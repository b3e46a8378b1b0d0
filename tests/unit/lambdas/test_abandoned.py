"""Incidents whose execution never started or has died: ended by name, mailed once, counted for an alarm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lambdas.domain.errors import RefusedError, UnavailableError
from lambdas.domain.incident import Incident, State, execution_name
from tests.events import builder

from .drive import Driver
from .looks import later, look

NODE = f"hyperpod-{builder.INSTANCES[1]}"


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


@pytest.fixture
def died(driver: Driver, incident: Incident) -> Incident:
    driver.play(incident, "locate", stop="decide")
    driver.world.executions.ended[execution_name(incident)] = "FAILED"
    return incident


@pytest.mark.parametrize("status", ["FAILED", "TIMED_OUT", "ABORTED", "SUCCEEDED"])
def test_an_execution_that_ended_without_its_incident_ends_it_by_name(
    driver: Driver, incident: Incident, status: str
) -> None:
    driver.play(incident, "locate", stop="decide")
    driver.world.executions.ended[execution_name(incident)] = status
    assert look(driver)["incidents_abandoned"] == 1
    ended = driver.world.incidents.get(incident.id)
    assert ended.state is State.HANDED_TO_HUMAN and status in ended.human_reason
    assert not driver.world.incidents.gates
    assert driver.world.kubernetes.nodes[NODE].unschedulable and not driver.world.cluster.calls
    assert look(driver)["incidents_abandoned"] == 0


def test_an_incident_whose_execution_never_started_ends_after_the_queue_gave_up(
    driver: Driver, incident: Incident
) -> None:
    driver.world.workflow.started.clear()
    assert look(driver)["incidents_abandoned"] == 0
    later(driver, minutes=36)
    assert look(driver)["incidents_abandoned"] == 1


def mails(driver: Driver) -> list[str]:
    return [f"{subject}\n{body}" for _, subject, body in driver.world.mail.sent]


def test_its_approvers_are_mailed_once(driver: Driver, died: Incident) -> None:
    driver.world.mail.confirmed = ("a@example.com", "b@example.com")
    for _ in range(3):
        look(driver)
        later(driver, minutes=5)
    assert [to for to, _, _ in driver.world.mail.sent] == ["a@example.com", "b@example.com"]
    text = mails(driver)[0]
    assert NODE in text and "needs a human" in text and "its execution is FAILED" in text
    assert any(
        what == "notice" and "2 approver(s)" in result for _, what, result in driver.world.incidents.trail
    )


def test_one_that_never_started_is_mailed_with_its_facts(driver: Driver, incident: Incident) -> None:
    driver.world.workflow.started.clear()
    later(driver, minutes=36)
    look(driver)
    (text,) = mails(driver)
    assert "never started" in text and "Nothing was touched" in text


def test_a_mail_that_did_not_leave_is_sent_at_the_next_look(
    driver: Driver, died: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: str) -> None:
        raise UnavailableError("SNS")

    with monkeypatch.context() as patched:
        patched.setattr(driver.world.mail, "send", down)
        assert look(driver)["incidents_without_progress"] == 1  # an alarm of its own, as long as it lasts
    assert not driver.world.incidents.get(died.id).state.terminal
    assert driver.world.incidents.gates == {f"instance#{builder.INSTANCES[1]}": died.id}, (
        "open, so it is taken"
    )
    assert look(driver)["incidents_abandoned"] == 1
    assert len(mails(driver)) == 1 and driver.world.incidents.get(died.id).state is State.HANDED_TO_HUMAN
    assert not driver.world.incidents.gates


def test_a_gate_that_an_ended_incident_kept_is_freed_at_the_next_look(driver: Driver, died: Incident) -> None:
    """Whoever wrote the end may die before the gate is free; an ended one blocks its instance otherwise."""
    look(driver)
    driver.world.incidents.take_gate(f"instance#{builder.INSTANCES[1]}", died.id)
    look(driver)
    assert not driver.world.incidents.gates


def test_a_mail_that_can_never_leave_keeps_nothing_open(
    driver: Driver, died: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: str) -> None:
        raise RefusedError("Publish", "AuthorizationError")

    monkeypatch.setattr(driver.world.mail, "send", denied)
    assert look(driver)["incidents_abandoned"] == 1
    assert driver.world.incidents.get(died.id).state is State.HANDED_TO_HUMAN
    assert any("could not be sent" in result for _, _, result in driver.world.incidents.trail)


def test_an_edited_alarm_does_not_keep_the_mail_from_going(driver: Driver, died: Incident) -> None:
    driver.world.incidents.alarms[died.id] += " "
    look(driver)
    (text,) = mails(driver)
    assert "the stored alarm was changed" in text


def test_an_abandoned_drill_says_that_it_is_one(driver: Driver, died: Incident) -> None:
    rows = driver.world.incidents.rows
    rows[died.id] = replace(rows[died.id], synthetic=True)
    look(driver)
    assert driver.world.incidents.get(died.id).state is State.CLOSED
    assert "FIRE DRILL" in mails(driver)[0]
