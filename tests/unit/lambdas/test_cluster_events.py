"""Events of the default bus, five minutes late: matched with our incidents, never acted on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.incident import Incident, execution_name
from tests.events import builder

from .drive import CONTEXT, Driver
from .looks import later

SUSPECT = builder.INSTANCES[1]


@pytest.fixture
def incident(driver: Driver) -> Incident:
    driver.register()
    (opened,) = driver.alarm(builder.alarm(builder.culprit(3)))
    return opened


def heard(driver: Driver, source: str, detail: Any) -> None:
    body = json.dumps({"source": source, "detail": detail})
    answer = handlers.reconcile({"Records": [{"messageId": "m", "body": body}]}, CONTEXT)
    assert answer == {"batchItemFailures": []}


METRIC_ALARM = {"alarmName": "NonfiniteGrad", "state": {"value": "ALARM"}}


def test_a_metric_alarm_without_an_incident_means_that_an_event_was_lost(driver: Driver) -> None:
    heard(driver, "aws.cloudwatch", METRIC_ALARM)
    assert driver.world.numbers.put_so_far["alarms_without_incident"] == 1


def test_a_metric_alarm_beside_its_incident_is_fine_also_when_that_has_ended(
    driver: Driver, incident: Incident
) -> None:
    driver.setting("MODE", "observe")
    driver.play(incident, "locate")
    later(driver, minutes=6)
    heard(driver, "aws.cloudwatch", METRIC_ALARM)
    assert driver.world.numbers.put_so_far["alarms_without_incident"] == 0


def test_a_metric_alarm_is_not_matched_with_an_incident_of_another_check(
    driver: Driver, incident: Incident
) -> None:
    for metric, lost in (("sdc_divergent_tensors", 1), ("sdc_replay_mismatch", 0)):
        stat = {"metricStat": {"metric": {"name": metric, "namespace": "TrainingSDC"}}}
        heard(driver, "aws.cloudwatch", {**METRIC_ALARM, "configuration": {"metrics": [stat]}})
        assert driver.world.numbers.put_so_far["alarms_without_incident"] == lost


@pytest.mark.parametrize("status", ["FAILED", "RUNNING"])
def test_an_execution_that_ended_badly_ends_its_incident_at_once(
    driver: Driver, incident: Incident, status: str
) -> None:
    name = execution_name(incident)
    driver.world.executions.ended[name] = status
    heard(driver, "aws.states", {"name": name, "status": "FAILED"})
    assert driver.world.incidents.get(incident.id).state.terminal is (status == "FAILED")
    heard(driver, "aws.states", {"name": "another-1", "status": "FAILED"})


def test_what_hyperpod_says_of_a_suspect_is_noted_at_its_incident(driver: Driver, incident: Incident) -> None:
    driver.play(incident, "locate", stop="contain")
    summary = {"HealthStatus": "Unhealthy", "RepairAction": "Replace"}
    heard(driver, "aws.sagemaker", {"InstanceId": SUSPECT, "HealthSummary": summary})
    assert any(
        what == "HyperPod says" and "Replace" in text for _, what, text in driver.world.incidents.trail
    )


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"source": 1, "detail": []}', "[" * 5000])
def test_events_that_are_none_are_left(driver: Driver, body: str) -> None:
    answer = handlers.reconcile({"Records": [{"messageId": "m", "body": body}]}, CONTEXT)
    assert answer == {"batchItemFailures": []}
