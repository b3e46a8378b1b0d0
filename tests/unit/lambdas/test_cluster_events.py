"""Events of the default bus, five minutes late: matched with our incidents, never acted on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas import handlers
from lambdas.domain.incident import Incident, execution_name
from tests.events import builder

from .drive import CONTEXT, Driver

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
