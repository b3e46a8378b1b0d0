"""Restart and upgrade: what waits under yesterday's definition finishes with today's handlers.

`golden/definition-before.json` is the definition of the release before this one; it is replaced when the
next one changes the flow. Logical ids are pinned, because a renamed table is a new, empty one.
"""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lambdas.domain.incident import Incident
from tests.events import builder
from training_agent.contract import Alarm, decode, encode

from .asl import Definition
from .plant import Plant

BEFORE = Path(__file__).parent / "golden" / "definition-before.json"
STANDS = {
    "AWS::DynamoDB::Table": {
        "ApprovalTable", "ControlTable", "IncidentTable", "QuarantineTable", "RegistrationTable",
    },
    "AWS::Events::EventBus": {"SdcBus"},
    "AWS::SNS::Topic": {"ApprovalTopic"},
    "AWS::SQS::Queue": {
        "AlarmQueue", "AlarmDeadLetters", "RegistrationQueue", "RegistrationDeadLetters",
    },
    "AWS::StepFunctions::StateMachine": {"IncidentWorkflow"},
    "AWS::Lambda::Function": {
        "ApprovalDecideFunction", "ApprovalShowFunction", "ConfirmFunction", "ContainFunction",
        "DecideFunction", "IngestFunction", "LocateFunction", "RegisterFunction", "ReplaceFunction",
        "RequestApprovalFunction", "ResumeFunction", "VerifyFunction",
    },
}  # fmt: skip
ENDS = {"approve": "REPLACED", "keep": "REJECTED_KEPT", "release": "REJECTED_RELEASED", "": "EXPIRED"}


@pytest.mark.parametrize("kind", STANDS)
def test_logical_ids_are_pinned(template: dict[str, Any], kind: str) -> None:
    found = {name for name, item in template["Resources"].items() if item["Type"] == kind}
    assert STANDS[kind] <= found, f"renamed or removed: {sorted(STANDS[kind] - found)}"


def test_functions_of_waiting_executions_are_still_deployed(template: dict[str, Any]) -> None:
    """A step that left the flow keeps its function for one approval timeout at least."""
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    called = {
        state.get("Parameters", {}).get("FunctionName", state["Resource"])
        for state in before["States"].values()
        if state["Type"] == "Task"
    }
    assert called <= template["Resources"].keys()


@pytest.mark.parametrize("answer", ENDS)
def test_twenty_executions_that_wait_across_an_upgrade_all_finish(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    before: Definition = json.loads(BEFORE.read_text(encoding="utf-8"))
    plant = Plant(monkeypatch, before, jobs=20)
    for name in ("REPLACEMENTS_PER_DAY", "REPLACEMENTS_PER_HOUR"):
        plant.setting(name, "25")
    plant.setting("APPROVAL_TIMEOUT_SECONDS", "86400")
    plant.watch.limits.per_day = plant.watch.limits.per_hour = 25
    for job in plant.jobs:
        plant.alarm(plant.alarm_of(builder.culprit(3, job.seats), job=job))
    plant.pump()
    assert len(plant.waiting()) == 20
    for incident_id in plant.waiting() if answer else []:
        assert plant.human(incident_id, answer) == 200
    for job in plant.jobs:
        plant.later(timedelta(hours=12), partial(plant.job_returns, job))
    plant.advance(timedelta(days=3))
    assert {i.state.value for i in plant.world.incidents.rows.values()} == {ENDS[answer]}
    assert plant.violations() == [] and not plant.world.incidents.gates


def test_an_alarm_of_the_version_before_is_understood(
    monkeypatch: pytest.MonkeyPatch, definition: Definition
) -> None:
    """Optional fields that it does not know are missing, fields that we do not know yet are there."""
    plant = Plant(monkeypatch, definition)
    event = builder.event(plant.alarm_of(builder.culprit(3, plant.jobs[0].seats)))
    event["detail"]["of_a_later_version"] = {"x": 1}
    for name in ("last_audit_pass", "last_weight_check_pass", "group"):
        event["detail"].pop(name, None)
    assert plant.deliver(event)
    plant.pump()
    assert len(plant.waiting()) == 1


def test_an_incident_that_was_stored_by_the_version_before_is_read() -> None:
    """Every field that is newer than the first release has a default."""
    stored = json.loads(encode(_incident()))
    needed = {f.name for f in fields(Incident)} & FIRST_RELEASE
    old = {k: v for k, v in stored.items() if k in needed}
    assert decode(Incident, json.dumps(old)).id == "x"
    assert decode(Incident, json.dumps({**old, "of_a_later_version": 1})).id == "x"


FIRST_RELEASE = {
    "id", "sequence", "delivery_key", "evidence_hash", "cluster", "job", "check", "step", "node", "ranks",
    "opened_at",
}  # fmt: skip


def _incident() -> Incident:
    alarm: Alarm = builder.alarm(builder.culprit(3))
    return Incident(
        id="x", sequence=1, delivery_key="k", evidence_hash="e", cluster="demo", job=alarm.job,
        check=alarm.check, step=30, node="hyperpod-x", ranks=(3,), opened_at=builder.TIME,
    )  # fmt: skip
