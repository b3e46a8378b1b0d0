"""What comes in: good alarms once, bad ones never further than an audit row."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lambdas.domain.errors import RefusedError, UnavailableError
from lambdas.domain.incident import State
from lambdas.steps.ingest import ALARMS_PER_HOUR
from tests.events import builder
from training_agent.contract import Check, Verdict

from .drive import Driver

ALARM = builder.alarm(builder.culprit(3))


def changed(**envelope: Any) -> dict[str, Any]:
    return builder.event(ALARM, **envelope)


def detail(**fields: Any) -> dict[str, Any]:
    event = builder.event(ALARM)
    event["detail"] = {**event["detail"], **fields}
    return event


BAD: dict[str, str | dict[str, Any]] = {
    "not JSON": "{",
    "not an object": "[]",
    "no detail": {"detail-type": "SDC Alarm"},
    "detail is text": changed(detail="hello"),
    "another detail-type": changed(**{"detail-type": "SDC Node Registered"}),
    "replayed from an archive": changed(**{"replay-name": "archive"}),
    "duplicate keys": json.dumps(builder.event(ALARM)).replace('"step": 30', '"step": 30, "step": 31'),
    "NaN": json.dumps(builder.event(ALARM)).replace('"step": 30', '"step": NaN'),
    "too deep": "[" * 100_000 + "]" * 100_000,
    "too large": detail(versions={"torch": "x" * 70_000}),
    "wrong type": detail(step="30"),
    "unknown major": detail(schema_version="2.0"),
    "another cluster": detail(cluster="other"),
    "time without a zone": detail(time="2026-01-01T00:10:00"),
    "time that is none": detail(time="yesterday"),
    "older than a day": detail(time="2025-12-31T00:00:00Z"),
    "from the future": detail(time="2026-01-01T00:40:00Z"),
    "more nodes than ranks": detail(nodes=7),
    "empty job uid": detail(job={"name": "llama", "uid": "", "attempt": 1, "namespace": "x"}),
    "half a surrogate in the group": detail(group="\ud800"),
    "a group without end": detail(group="x" * 300),
    "half a surrogate": detail(job={"name": "llama", "uid": "\ud800", "attempt": 1}),
    "name beyond a table's key": detail(job={"name": "llama", "uid": "u" * 3000, "attempt": 1}),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_event_leaves_an_audit_row_and_no_execution(driver: Driver, name: str) -> None:
    assert driver.send(BAD[name]) == {"batchItemFailures": []}
    assert len(driver.world.incidents.rejected) == 1
    assert not driver.world.workflow.started and not driver.world.incidents.rows


def test_a_good_alarm_beside_bad_ones_is_taken(driver: Driver) -> None:
    assert driver.send("{", builder.event(ALARM), "[]") == {"batchItemFailures": []}
    assert len(driver.world.workflow.started) == 1


def test_clocks_may_be_ten_minutes_off(driver: Driver) -> None:
    driver.send(detail(time="2026-01-01T00:20:00Z"))
    assert len(driver.world.workflow.started) == 1


def test_a14_duplicate_delivery_opens_one_incident(driver: Driver) -> None:
    for number in range(5):
        driver.send(changed(id=f"event-{number}"))
    assert len(driver.world.workflow.started) == len(driver.world.incidents.rows) == 1


def test_a14_store_down_fails_closed(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any) -> None:
        raise UnavailableError("table")

    monkeypatch.setattr(driver.world.incidents, "delivery", down)
    assert driver.send(builder.event(ALARM)) == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    assert not driver.world.workflow.started


def test_one_message_that_the_store_refuses_does_not_fail_the_others(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = driver.world.incidents.delivery

    def refuse_first(key: str, node: str | None) -> Any:
        monkeypatch.setattr(driver.world.incidents, "delivery", delivery)
        raise RefusedError("ValidationException")

    monkeypatch.setattr(driver.world.incidents, "delivery", refuse_first)
    answer = driver.send(builder.event(ALARM), detail(step=31))
    assert answer == {"batchItemFailures": [{"itemIdentifier": "m0"}]}
    assert len(driver.world.workflow.started) == 1


def test_execution_is_started_again_after_a_crash_before_it(driver: Driver) -> None:
    (incident,) = driver.alarm(ALARM)
    driver.world.workflow.started.clear()
    driver.send(builder.event(ALARM))
    assert list(driver.world.workflow.started.values()) == [incident.id]


def test_a12_restarts_on_the_bad_node_are_counted_in_one_incident(driver: Driver) -> None:
    (incident,) = driver.alarm(ALARM)
    for attempt in range(2, 7):
        again = replace(ALARM, job=replace(ALARM.job, attempt=attempt))
        driver.send(builder.event(again))
        driver.send(builder.event(again))
    assert len(driver.world.incidents.rows) == 1
    assert driver.world.incidents.restarts[incident.id] == 5


def test_alarms_of_jobs_that_nobody_verified_share_one_quota(driver: Driver) -> None:
    """A pod may write any job's name into its alarms: a thousand names are not a thousand mails."""
    driver.register()
    for number in range(ALARMS_PER_HOUR + 10):
        job = replace(builder.JOB, uid=f"made-up-{number}")
        driver.send(builder.event(replace(ALARM, job=job)))
    assert len(driver.world.incidents.rows) == ALARMS_PER_HOUR
    assert len(driver.world.incidents.rejected) == 10
    assert driver.alarm(ALARM), "a registered job's alarm was hidden by the flood"


def test_a_node_is_named_once_also_when_the_function_died_right_after_opening(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row S1 and the day's quota count the nodes that a job named: none may be missing."""

    def killed(*_: Any) -> None:
        raise UnavailableError("the function died")

    with monkeypatch.context() as patched:
        patched.setattr(driver.world.bus, "state_changed", killed)
        assert driver.send(builder.event(ALARM))["batchItemFailures"]
    driver.send(builder.event(ALARM))
    named = driver.world.incidents.history(f"job#{ALARM.job.uid}")
    assert [entry.what for entry in named] == [f"hyperpod-{builder.INSTANCES[1]}"]


def test_the_same_alarm_after_the_end_opens_a_new_incident_only_on_a_later_attempt(driver: Driver) -> None:
    (first,) = driver.alarm(ALARM)
    rows = driver.world.incidents.rows
    rows[first.id] = replace(rows[first.id], state=State.RELEASED)
    assert driver.alarm(ALARM) == []
    (second,) = driver.alarm(replace(ALARM, job=replace(ALARM.job, attempt=2)))
    assert second.sequence == 2 and second.id != first.id
    assert len(driver.world.workflow.started) == 2


def test_one_incident_for_each_blamed_node(driver: Driver) -> None:
    opened = driver.alarm(
        builder.alarm(builder.culprit(1), builder.culprit(4), builder.pair(4, Verdict.TRANSIENT))
    )
    assert [(i.node, i.ranks) for i in opened] == [
        (f"hyperpod-{builder.INSTANCES[0]}", (1,)),
        (f"hyperpod-{builder.INSTANCES[2]}", (4,)),
    ]


def test_execution_input_is_the_incident_id_and_the_name_has_the_sequence(driver: Driver) -> None:
    (incident,) = driver.alarm(builder.alarm(builder.weights(3), check=Check.WEIGHTS))
    assert driver.world.workflow.started == {f"{incident.id}-1": incident.id}


def test_a25_nothing_is_acted_on_after_a_long_outage(driver: Driver) -> None:
    driver.world.clock.at += timedelta(days=3)
    driver.send(*[detail(step=step) for step in range(10, 60)])
    assert len(driver.world.incidents.rejected) == 50
    assert not driver.world.workflow.started


@pytest.mark.parametrize("name", ["older than a day", "from the future"])
def test_a_true_alarm_that_is_not_acted_on_is_told_on_the_bus(driver: Driver, name: str) -> None:
    """The audit row alone would be seen by nobody: chat and paging hear of it as of any other end."""
    driver.send(BAD[name])
    (event,) = driver.world.bus.events
    assert (event["state"], event["incident_id"], event["previous"]) == ("REJECTED_EVENT", None, None)
    assert event["job"] == ALARM.job.name and event["story"] == driver.world.incidents.rejected[0]


@pytest.mark.parametrize("name", sorted(set(BAD) - {"older than a day", "from the future"}))
def test_what_is_no_alarm_of_this_cluster_tells_nobody(driver: Driver, name: str) -> None:
    """Forged, foreign, replayed: a metric counts it, and nobody's chat repeats its text."""
    driver.send(BAD[name])
    assert driver.world.bus.events == []
