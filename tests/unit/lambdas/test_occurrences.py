"""Each alarm in each attempt that came in while an incident was open is let go with it: no job waits on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lambdas.domain.incident import Incident, State
from lambdas.steps.contain import MAX_OCCURRENCES
from lambdas.steps.locate import MAX_JOINED
from tests.events import builder
from training_agent.contract import (
    Alarm,
    Finding,
    FindingKind,
    Verdict,
    delivery_key,
    instance_subject,
    job_subject,
    occurrence_key,
)

from .drive import Driver
from .fakes import START

SUSPECT = builder.INSTANCES[1]
FIRST = builder.alarm(builder.culprit(3))


@pytest.fixture
def asked(driver: Driver) -> Incident:
    """A culprit, contained; a person is asked."""
    driver.register()
    (incident,) = driver.alarm(FIRST)
    driver.until_asked(incident)
    return incident


def replaced(driver: Driver, incident: Incident) -> None:
    driver.answer(driver.links()[-1])
    assert driver.step("replace", incident)["outcome"] == "replaced"
    driver.world.cluster.swap(SUSPECT)
    assert driver.step("verify", incident)["outcome"] == "verified"
    driver.step("resume", incident)


def freed(driver: Driver, subject: str = "") -> set[str]:
    row = driver.world.quarantine.rows[subject or instance_subject(SUSPECT)]
    assert row["state"] == "released"
    keys: set[str] = row["delivery_keys"]
    return keys


def again(alarm: Alarm, attempt: int) -> Alarm:
    return replace(alarm, job=replace(alarm.job, attempt=attempt))


def test_alarms_beyond_those_it_decides_with_are_let_go_with_it(driver: Driver, asked: Incident) -> None:
    sent = [FIRST]
    for number in range(MAX_JOINED + 5):
        driver.world.clock.at = START + timedelta(minutes=4 * number)
        late = builder.alarm(
            builder.pair(3, Verdict.TRANSIENT), step=100 + number, time=driver.world.clock.at.isoformat()
        )
        (incident,) = driver.alarm(late)
        assert driver.play(incident, "locate") == "joined"
        sent.append(late)
    assert len(driver.world.incidents.get(asked.id).joined) == MAX_JOINED
    replaced(driver, asked)
    assert freed(driver) >= {occurrence_key(delivery_key(alarm), 1) for alarm in sent}


def test_every_restart_on_the_held_node_is_let_go_with_it(driver: Driver, asked: Incident) -> None:
    for attempt in range(2, 30):
        assert driver.alarm(again(FIRST, attempt)) == []
    replaced(driver, asked)
    assert freed(driver) == {occurrence_key(delivery_key(FIRST), attempt) for attempt in range(1, 30)}


def test_an_alarm_that_came_again_while_its_incident_was_on_its_way_is_let_go_by_the_one_it_joins(
    driver: Driver, asked: Incident
) -> None:
    other = builder.alarm(builder.culprit(2), step=40)
    (second,) = driver.alarm(other)
    driver.alarm(again(other, 2))
    driver.play(second, "locate")
    replaced(driver, asked)
    assert freed(driver) >= {occurrence_key(delivery_key(other), attempt) for attempt in (1, 2)}


def test_an_alarm_in_the_moment_of_the_end_is_delivered_again_and_opens_an_incident(
    driver: Driver, asked: Incident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found the incident open, which had let go what it knew when the alarm was appended."""
    append, ends = driver.world.incidents.append_evidence, [lambda: replaced(driver, asked)]

    def late(*args: object) -> None:
        ends.pop()()
        append(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(driver.world.incidents, "append_evidence", late)
        failed = driver.send(builder.event(again(FIRST, 2)))["batchItemFailures"]
    assert failed, "taken for a duplicate of what has ended"
    (second,) = driver.alarm(again(FIRST, 2))
    assert second.sequence == 2


def test_what_nobody_waits_for_is_let_go_also_when_it_comes_again_before_the_end(driver: Driver) -> None:
    """N0: the job need not wait; its restart's alarm comes in while the people are being told."""
    driver.register()
    peers = Finding(FindingKind.NONFINITE, involved=builder.places()[3:4], reproduced=True)
    alarm = builder.alarm(peers)
    (incident,) = driver.alarm(alarm)
    driver.play(incident, "locate", stop="tell_human")
    driver.alarm(again(alarm, 2))
    driver.play(incident, "tell_human")
    assert driver.world.incidents.get(incident.id).state is State.HANDED_TO_HUMAN
    keys = freed(driver, job_subject(builder.JOB.uid))
    assert keys == {occurrence_key(delivery_key(alarm), attempt) for attempt in (1, 2)}


def test_what_is_let_go_at_once_is_bounded(driver: Driver, asked: Incident) -> None:
    key = delivery_key(FIRST)
    for attempt in range(2, MAX_OCCURRENCES + 50):
        driver.world.incidents.append_evidence(asked.id, key, attempt, "", START)
    replaced(driver, asked)
    assert len(freed(driver)) <= MAX_OCCURRENCES + 1
    assert occurrence_key(key, MAX_OCCURRENCES + 49) in freed(driver)


def test_a_start_that_alarmed_again_is_not_the_jobs_return(driver: Driver, asked: Incident) -> None:
    """It ran on the suspect node. Of the starts that follow the first counts: the others go on from it."""
    driver.job_returns(attempt=2, resumed_from=20)
    driver.alarm(again(FIRST, 2))
    driver.answer(driver.links()[-1], "release")
    assert driver.play(asked, "approval_answered", stop="resume") == "resume"
    assert driver.step("resume", asked)["outcome"] == "waiting"
    driver.job_returns(attempt=3, resumed_from=20)
    driver.job_returns(attempt=4, resumed_from=60)
    assert driver.step("resume", asked)["outcome"] == "closed"
    assert driver.world.incidents.get(asked.id).resumed_from_step == 20
    assert "from step 20, as chosen" in driver.stories[-1]


def sent_again_late(driver: Driver, alarm: Alarm) -> list[Incident]:
    """As the spool does: with the time at which it was raised."""
    driver.world.clock.at += timedelta(minutes=30)
    return driver.alarm(alarm)


def test_a_restarts_alarm_that_is_delivered_once_more_does_not_undo_a_release(
    driver: Driver, asked: Incident
) -> None:
    """The spool sends again what it does not know to be sent, at the start that follows the release."""
    assert driver.alarm(again(FIRST, 2)) == []
    driver.world.clock.at += timedelta(minutes=10)
    driver.answer(driver.links()[-1], "release")
    assert driver.play(asked, "approval_answered", stop="resume") == "resume"
    driver.step("resume", asked)
    assert sent_again_late(driver, again(FIRST, 2)) == [], "while it waits for the job"
    driver.job_returns(attempt=3)
    driver.step("resume", asked)
    assert driver.world.incidents.get(asked.id).state is State.REJECTED_RELEASED
    assert driver.alarm(again(FIRST, 2)) == [], "after its end"
    (news,) = driver.alarm(again(FIRST, 3))
    assert news.sequence == 2


def test_nor_one_whose_incident_had_joined_another(driver: Driver, asked: Incident) -> None:
    other = builder.alarm(builder.culprit(2), step=40)
    (second,) = driver.alarm(other)
    assert driver.alarm(again(other, 2)) == []
    driver.world.clock.at += timedelta(minutes=10)
    assert driver.play(second, "locate") == "joined"
    replaced(driver, asked)
    assert sent_again_late(driver, again(other, 2)) == []
