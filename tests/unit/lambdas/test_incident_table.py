"""The incident table's conditions, on moto's DynamoDB. No sockets."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from lambdas.adapters.incidents import IncidentTable
from lambdas.domain.errors import ConflictError
from lambdas.domain.incident import NO_INCIDENT, Incident, State, Target, incident_id
from lambdas.domain.times import stamp
from lambdas.domain.world import Delivery, HistoryEntry
from lambdas.ports import Incidents
from tests.events import builder
from training_agent.contract import Check

from .fake_stores import FakeIncidents

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
INSTANCE = builder.INSTANCES[1]


def an_incident(sequence: int = 1) -> Incident:
    node = f"hyperpod-{INSTANCE}"
    target = Target(node, INSTANCE, "gpu", "2025-12-31T00:00:00Z", (3,), ("GPU-1",), True)
    return Incident(
        id=incident_id("key", node, sequence),
        sequence=sequence,
        delivery_key="key",
        evidence_hash="h",
        cluster="demo",
        job=builder.JOB,
        check=Check.REPLAY,
        step=30,
        node=node,
        ranks=(3,),
        opened_at="2026-01-01T00:00:00Z",
        targets=(target,),
        tries={"verify": 3},
    )


def test_an_incident_comes_back_as_it_was_saved(tables: None) -> None:
    store, incident = IncidentTable("incidents"), an_incident()
    assert store.open(incident, "alarm", None)
    assert store.get(incident.id) == incident
    assert store.alarm(incident.id) == "alarm"
    saved = store.save(replace(incident, state=State.LOCATED, resumed_from_step=20))
    assert store.get(incident.id) == saved and saved.version == 1
    item = store._table.get({"pk": f"incident#{incident.id}", "sk": "state"}) or {}
    assert item["state"] == "LOCATED" and item["instance_id"] == INSTANCE and item["resumed_from_step"] == 20


@pytest.fixture(params=[IncidentTable, FakeIncidents])
def store(request: pytest.FixtureRequest, tables: None) -> Incidents:
    """The table, and the fake of the other tests: one behaviour."""
    made: Incidents = request.param("incidents") if request.param is IncidentTable else request.param()
    return made


def test_a_save_over_somebody_elses_is_a_conflict(store: Incidents) -> None:
    incident = an_incident()
    store.open(incident, "alarm", None)
    store.save(incident)
    with pytest.raises(ConflictError):
        store.save(incident)


def test_a_delivery_opens_once_and_again_only_over_the_one_it_read(store: Incidents) -> None:
    first, second = an_incident(), an_incident(2)
    assert store.open(first, "alarm", None)
    assert not store.open(first, "alarm", None)
    earlier = store.delivery("key", first.node)
    assert earlier == Delivery(first.id, 1, 1)
    assert store.open(second, "alarm", earlier)
    assert not store.open(an_incident(3), "alarm", earlier)


def test_evidence_is_kept_once_and_later_attempts_are_counted(tables: None) -> None:
    store, incident = IncidentTable("incidents"), an_incident()
    store.open(incident, "alarm", None)
    for attempt in (1, 2, 2, 3):
        store.append_evidence(incident.id, "key", attempt, "text", NOW)
    store.append_evidence(incident.id, "another key", 9, "text", NOW)
    item = store._table.get({"pk": f"incident#{incident.id}", "sk": "state"}) or {}
    assert item["restart_count"] == 2
    store.save(incident)  # a count in between is no conflict and is not lost
    assert (store._table.get({"pk": f"incident#{incident.id}", "sk": "state"}) or {})["restart_count"] == 2


def test_when_evidence_was_kept_is_its_first_time(store: Incidents) -> None:
    """By it a restart's alarm that is delivered once more is told from one that is news."""
    incident = an_incident()
    store.open(incident, "alarm", None)
    for minutes in (0, 5):
        store.append_evidence(incident.id, "key", 2, "text", NOW + timedelta(minutes=minutes))
    assert store.kept_at(incident.id, "key", 2) == stamp(NOW)
    assert store.kept_at(incident.id, "key", 3) is None


def test_a_gate_has_one_holder_until_it_frees_it(store: Incidents) -> None:
    assert store.take_gate("instance#i", "a") == "a"
    assert store.take_gate("instance#i", "b") == "a"
    store.free_gate("instance#i", "b")
    assert store.take_gate("instance#i", "a") == "a"
    store.free_gate("instance#i", "a")
    assert store.take_gate("instance#i", "b") == "b"


def test_an_intent_is_written_once_and_keeps_its_moment(store: Incidents) -> None:
    assert store.intend("x", "replace", NOW) and not store.intend("x", "replace", NOW)
    store.conclude("x", "replace", "accepted", NOW + timedelta(minutes=1))
    effect = store.effect("x", "replace")
    assert effect is not None and (effect.result, effect.at) == ("accepted", stamp(NOW)), "begun then"


def test_open_incidents_are_listed_until_they_are_forgotten(tables: None) -> None:
    store, first, second = IncidentTable("incidents"), an_incident(), an_incident(2)
    store.open(first, "alarm", None)
    store.open(second, "alarm", store.delivery("key", first.node))
    assert set(store.open_incidents()) == {first.id, second.id}
    store.forget_open(first.id)
    assert store.open_incidents() == (second.id,)
    assert store.get(first.id).id == first.id  # only the list forgets


def test_effects_of_an_incident_are_listed_with_their_results(store: Incidents) -> None:
    store.intend("x", "replace", NOW)
    store.intend("x", "cordon:node", NOW)
    store.conclude("x", "cordon:node", "cordoned", NOW)
    assert {(e.name, e.result) for e in store.effects_of("x")} == {
        ("replace", ""),
        ("cordon:node", "cordoned"),
    }
    assert store.effects_of("y") == ()


def test_events_that_open_no_incident_have_an_end_of_their_own(tables: None) -> None:
    store, incident = IncidentTable("incidents"), an_incident()
    store.open(incident, "alarm", None)
    store.append_evidence(incident.id, "key", 1, "text", NOW)
    store.reject("not JSON", "SDC Alarm", "{", NOW)
    (duplicate,) = store._table.query(
        "pk = :pk AND begins_with(sk, :e)", {":pk": f"incident#{incident.id}", ":e": "evidence#"}
    )
    (rejected,) = store._table.query("pk = :pk", {":pk": "rejected#2026-01-01"})
    assert (duplicate["end"], rejected["end"]) == NO_INCIDENT[::-1]


def test_history_is_idempotent_and_by_time(tables: None) -> None:
    store = IncidentTable("incidents")
    entry = HistoryEntry("gpu#1", "a", "V2", "2026-01-01T00:00:00Z")
    store.remember(entry)
    store.remember(entry)
    assert store.history("gpu#1") == (entry,)
    assert store.history("gpu#1", since="2026-01-02") == ()


def test_audit_and_rejections_are_appended(tables: None) -> None:
    store = IncidentTable("incidents")
    store.audit("x", "evict", "a", NOW)
    store.audit("x", "evict", "b", NOW)
    store.reject("not JSON", "SDC Alarm", "{", NOW)
    assert len(store._table.query("pk = :pk", {":pk": "incident#x"})) == 2
    assert len(store._table.query("pk = :pk", {":pk": "rejected#2026-01-01"})) == 1
