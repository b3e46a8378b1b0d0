"""A metric of the agent fired: with its alarm event all is well, without it people get an incident."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.errors import UnavailableError
from lambdas.domain.incident import Incident, State
from lambdas.domain.times import stamp
from lambdas.steps.register import JOB_NAME_LABEL, JOB_UID_LABEL
from tests.events import builder
from training_agent.contract import Metric

from .drive import CONTEXT, Driver
from .looks import later, look

REPLAY, WEIGHTS = "sdc_replay_mismatch", "sdc_divergent_tensors"
LOST = "alarms_without_incident"


def fired(driver: Driver, metric: str = REPLAY, **changes: Any) -> str:
    """CloudWatch's event as it arrives: it was put five minutes ago."""
    stat = {"metricStat": {"metric": {"name": metric, "namespace": "TrainingSDC"}}}
    reason = "Threshold Crossed: 1 datapoint [1.0] was greater than the threshold (0.0)."
    event: dict[str, Any] = {
        "source": "aws.cloudwatch",
        "time": stamp(driver.world.clock.at),
        "detail": {
            "alarmName": "TrainingSdc-demo-ReplayMismatch",
            "state": {"value": "ALARM", "reason": reason},
            "configuration": {"metrics": [stat]},
        },
    } | changes
    later(driver, minutes=5)
    return json.dumps(event)


def hear(driver: Driver, body: str) -> list[Incident]:
    """Deliver it; the incidents that it opened."""
    before = set(driver.world.incidents.rows)
    answer = handlers.reconcile({"Records": [{"messageId": "m", "body": body}]}, CONTEXT)
    assert answer == {"batchItemFailures": []}
    return [i for i in driver.world.incidents.rows.values() if i.id not in before]


@pytest.fixture
def opened(driver: Driver) -> Incident:
    (incident,) = hear(driver, fired(driver))
    return incident


def state_of(driver: Driver, incident: Incident) -> State:
    return driver.world.incidents.get(incident.id).state


def late_alarm(driver: Driver) -> Incident:
    driver.register()
    alarm = replace(builder.alarm(builder.culprit(3)), time=stamp(driver.world.clock.at))
    (incident,) = driver.alarm(alarm)
    return incident


# with its event


def test_a_metric_alarm_beside_its_event_opens_nothing(driver: Driver) -> None:
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    assert hear(driver, fired(driver)) == []
    assert driver.world.numbers.put_so_far[LOST] == 0


def test_nor_when_its_incident_has_ended_before_the_metric_was_heard(driver: Driver) -> None:
    driver.register()
    (incident,) = driver.alarm(builder.alarm(builder.culprit(3)))
    driver.setting("MODE", "observe")
    driver.play(incident, "locate")
    assert hear(driver, fired(driver)) == []


def test_nor_when_the_alarm_of_a_restart_was_kept_with_an_old_incident(driver: Driver) -> None:
    """The incident may have been open for hours: what counts is when an event came."""
    driver.register()
    alarm = builder.alarm(builder.culprit(3))
    driver.alarm(alarm)
    later(driver, hours=2)
    again = replace(alarm, job=replace(alarm.job, attempt=2), time=stamp(driver.world.clock.at))
    assert driver.alarm(again) == []
    assert hear(driver, fired(driver)) == []
    later(driver, hours=1)
    assert len(hear(driver, fired(driver))) == 1  # and this time none came


def test_an_event_of_another_check_is_not_the_one(driver: Driver) -> None:
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    (incident,) = hear(driver, fired(driver, WEIGHTS))
    assert incident.check.value == "weights"


def test_nor_is_a_fire_drill_which_puts_no_metric(driver: Driver) -> None:
    handlers.drill({}, CONTEXT)
    detail = json.loads(driver.world.bus.alarms[0])
    driver.send({**builder.event(builder.alarm(builder.culprit(3))), "detail": detail})
    assert driver.world.incidents.rows
    assert len(hear(driver, fired(driver))) == 1


def run(driver: Driver, *jobs: str) -> None:
    pods = driver.world.kubernetes.pods
    for (key, pod), name in zip(list(pods.items()), jobs, strict=False):
        pods[key] = replace(pod, labels={JOB_UID_LABEL: f"u-{name}", JOB_NAME_LABEL: name})


def put_by(driver: Driver, *jobs: str) -> None:
    """These run, and put the metric now."""
    run(driver, *jobs)
    driver.world.numbers.fired = {Metric.REPLAY_MISMATCH: dict.fromkeys(jobs, driver.world.clock.at)}


@pytest.mark.parametrize("lost", [("other",), ("other", "third")])
def test_an_event_of_another_job_hides_none_that_is_lost(driver: Driver, lost: tuple[str, ...]) -> None:
    heard = builder.JOB.name
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    put_by(driver, heard, *lost)
    incidents = hear(driver, fired(driver))
    assert tuple(i.job.name for i in incidents) == lost
    for incident, (_, _, body) in zip(incidents, driver.world.mail.sent, strict=True):
        assert f"Job that put the metric: {incident.job.name}" in body
    later(driver, minutes=5)
    driver.alarm(builder.alarm(builder.culprit(3)))  # of the job that was heard, once more
    look(driver)
    assert {state_of(driver, i) for i in incidents} == {State.DETAILS_MISSING}


def test_the_event_of_the_job_that_put_the_metric_is_its_own(driver: Driver) -> None:
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    put_by(driver, builder.JOB.name)
    assert hear(driver, fired(driver)) == []


# while the metric's alarm is on: CloudWatch says nothing more


def test_a_second_job_whose_event_is_lost_while_the_alarm_is_on_has_an_incident_of_its_own(
    driver: Driver,
) -> None:
    heard = builder.JOB.name
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    put_by(driver, heard)
    assert hear(driver, fired(driver)) == []
    run(driver, heard, "other")
    driver.world.numbers.fired[Metric.REPLAY_MISMATCH]["other"] = driver.world.clock.at
    assert LOST not in look(driver), "its event may be on its way"
    before = set(driver.world.incidents.rows)
    for _ in range(5):
        later(driver, minutes=5)
        look(driver)
    (incident,) = (i for i in driver.world.incidents.rows.values() if i.id not in before)
    assert (incident.state, incident.job.name) == (State.DETAILS_MISSING, "other")
    assert incident.human_reason.startswith("details missing: the metric sdc_replay_mismatch was above zero")
    ((_, subject, body),) = driver.world.mail.sent
    assert subject == "[SDC] job other: details missing" and "Job that put the metric: other" in body
    assert "Metric alarm:" not in body


def test_two_jobs_whose_events_are_lost_one_after_the_other_are_two_incidents(driver: Driver) -> None:
    put_by(driver, "llama-tiny")
    (first,) = hear(driver, fired(driver))
    run(driver, "llama-tiny", "other")
    driver.world.numbers.fired[Metric.REPLAY_MISMATCH]["other"] = driver.world.clock.at
    later(driver, minutes=6)
    assert look(driver)[LOST] == 2
    assert {i.job.name for i in driver.world.incidents.rows.values()} == {"llama-tiny", "other"}
    assert len(driver.world.mail.sent) == 2
    assert hear(driver, fired(driver)) == []  # CloudWatch's own event, late
    assert len(driver.world.mail.sent) == 2 and state_of(driver, first) is State.DETAILS_MISSING


def test_a_job_whose_event_came_is_not_missed(driver: Driver) -> None:
    driver.register()
    driver.alarm(builder.alarm(builder.culprit(3)))
    put_by(driver, builder.JOB.name)
    later(driver, minutes=6)
    assert LOST not in look(driver)
    assert {i.state for i in driver.world.incidents.rows.values()} == {State.OPENING}


def test_a_job_that_fires_again_after_its_incident_has_ended_has_a_new_one(driver: Driver) -> None:
    put_by(driver, "llama-tiny")
    (first,) = hear(driver, fired(driver))
    later(driver, hours=1, minutes=1)
    look(driver)
    assert state_of(driver, first) is State.HANDED_TO_HUMAN
    put_by(driver, "llama-tiny")
    later(driver, minutes=6)
    look(driver)
    assert [i.sequence for i in driver.world.incidents.rows.values()] == [1, 2]


# without it


def test_without_its_event_people_are_mailed_and_nothing_is_touched(driver: Driver) -> None:
    put_by(driver, "llama-tiny")
    (incident,) = hear(driver, fired(driver))
    assert (incident.state, incident.job.name) == (State.DETAILS_MISSING, "llama-tiny")
    assert incident.human_reason.startswith("details missing: the metric alarm TrainingSdc-demo-Replay")
    ((_, subject, body),) = driver.world.mail.sent
    assert subject == "[SDC] job llama-tiny: details missing"
    assert "Job that put the metric: llama-tiny" in body and "Threshold Crossed" in body
    assert driver.world.numbers.put_so_far[LOST] == 1
    assert driver.world.bus.events[-1]["state"] == "DETAILS_MISSING"
    for _ in range(9):
        assert look(driver)["incidents_without_progress"] == 0
        later(driver, minutes=5)
    assert not driver.world.workflow.started and not driver.world.cluster.calls
    assert not any(n.unschedulable for n in driver.world.kubernetes.nodes.values())
    assert not driver.world.kubernetes.evicted and not driver.world.quarantine.rows
    assert len(driver.world.mail.sent) == 1


def test_one_incident_however_often_it_is_delivered_and_however_it_flaps(
    driver: Driver, opened: Incident
) -> None:
    body = fired(driver)
    assert hear(driver, body) == hear(driver, body) == hear(driver, fired(driver)) == []
    assert len(driver.world.mail.sent) == 1
    (other,) = hear(driver, fired(driver, WEIGHTS))
    assert other.id != opened.id


def test_it_joins_the_incident_of_an_event_that_comes_late(driver: Driver, opened: Incident) -> None:
    look(driver)
    assert state_of(driver, opened) is State.DETAILS_MISSING
    later(driver, minutes=20)
    real = late_alarm(driver)
    look(driver)
    assert state_of(driver, opened) is State.JOINED
    assert driver.world.bus.events[-1]["story"] == f"its event came: incident {real.id}"
    assert driver.until_asked(real)  # the event's own incident is as any other


def test_once_no_event_could_be_acted_on_it_is_a_human_s(driver: Driver, opened: Incident) -> None:
    later(driver, hours=1, minutes=1)
    look(driver)
    ended = driver.world.incidents.get(opened.id)
    assert (ended.state, ended.closed_at is not None) == (State.HANDED_TO_HUMAN, True)
    later(driver, minutes=5)
    (again,) = hear(driver, fired(driver))
    assert again.id != opened.id and again.sequence == 2


def test_the_same_event_delivered_after_the_end_opens_nothing(driver: Driver) -> None:
    body = fired(driver)
    (incident,) = hear(driver, body)
    later(driver, hours=2)
    look(driver)
    assert state_of(driver, incident).terminal
    assert hear(driver, body) == []


def test_a_mail_that_could_not_be_sent_is_sent_with_the_next_delivery(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise UnavailableError("SNS does not answer")

    body = fired(driver)
    with monkeypatch.context() as patched:
        patched.setattr(driver.world.mail, "send", down)
        answer = handlers.reconcile({"Records": [{"messageId": "m", "body": body}]}, CONTEXT)
    assert answer["batchItemFailures"] == [{"itemIdentifier": "m"}]
    assert look(driver)["unknown_outcomes"] == 1
    assert hear(driver, body) == []
    assert len(driver.world.mail.sent) == 1


def test_a_mail_that_the_queue_gave_up_is_sent_by_the_redrive(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days later, from the dead letters: the incident has ended, and nobody was told of it."""
    body, error = fired(driver), UnavailableError("no answer")

    def fails(*_: str) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(driver.world.mail, "send", fails)
        assert handlers.reconcile({"Records": [{"messageId": "m", "body": body}]}, CONTEXT) != {
            "batchItemFailures": []
        }
    later(driver, hours=30)
    look(driver)
    (incident,) = driver.world.incidents.rows.values()
    assert incident.state is State.HANDED_TO_HUMAN
    for _ in range(2):
        assert hear(driver, body) == []
        assert len(driver.world.mail.sent) == 1


def test_what_cannot_be_read_keeps_no_mail_back(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise UnavailableError("the API server does not answer")

    monkeypatch.setattr(driver.world.kubernetes, "job_pods", down)
    hear(driver, fired(driver))
    ((_, subject, body),) = driver.world.mail.sent
    assert subject == "[SDC] job not known: details missing"
    assert "could not be read: the API server does not answer" in body


def test_no_step_that_acts_takes_it_up(driver: Driver, opened: Incident) -> None:
    """An execution that somebody starts by hand for it, and a release by hand."""
    for step in ("contain", "decide", "confirm", "replace", "verify", "resume"):
        assert driver.step(step, opened)["outcome"] == "human", step
    later(driver, hours=2)
    look(driver)
    asked = {"incident_id": opened.id, "release": {"by": "alex", "reason": "looked"}}
    assert handlers.resume(asked, CONTEXT)["outcome"] == "refused"
    assert not driver.world.quarantine.rows and not driver.world.cluster.calls


def test_without_a_check_of_ours_it_is_a_number_only(driver: Driver) -> None:
    assert hear(driver, fired(driver, "CPUUtilization")) == []
    assert driver.world.numbers.put_so_far[LOST] == 1
    assert hear(driver, fired(driver, detail={"state": {"value": "OK"}})) == []


@pytest.mark.parametrize("time", [None, "yesterday", 7, "2026-01-01T00:00:00"])
def test_an_event_without_a_time_counts_as_of_now(driver: Driver, time: object) -> None:
    (incident,) = hear(driver, fired(driver, time=time))
    assert incident.state is State.DETAILS_MISSING
