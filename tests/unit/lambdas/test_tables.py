"""The tables' conditions, on moto's DynamoDB. No sockets."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import boto3
import pytest

from lambdas.adapters.approvals import ApprovalTable
from lambdas.adapters.incidents import IncidentTable
from lambdas.adapters.quarantine import QuarantineTable
from lambdas.adapters.registrations import RegistrationTable
from lambdas.domain.approval import Action, Answer, Approval, ApprovalState, Fact, Link
from lambdas.domain.errors import (
    ConflictError,
)
from lambdas.domain.incident import NO_INCIDENT, Incident, State, Target, incident_id
from lambdas.domain.world import Delivery, HistoryEntry, Registered
from tests.events import builder
from training_agent.contract import Check, Mode, encode

from .fake_stores import FakeApprovals, FakeQuarantine

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


def test_a_save_over_somebody_elses_is_a_conflict(tables: None) -> None:
    store, incident = IncidentTable("incidents"), an_incident()
    store.open(incident, "alarm", None)
    store.save(incident)
    with pytest.raises(ConflictError):
        store.save(incident)


def test_a_delivery_opens_once_and_again_only_over_the_one_it_read(tables: None) -> None:
    store, first, second = IncidentTable("incidents"), an_incident(), an_incident(2)
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


def test_a_gate_has_one_holder_until_it_frees_it(tables: None) -> None:
    store = IncidentTable("incidents")
    assert store.take_gate("instance#i", "a") == "a"
    assert store.take_gate("instance#i", "b") == "a"
    store.free_gate("instance#i", "b")
    assert store.take_gate("instance#i", "a") == "a"
    store.free_gate("instance#i", "a")
    assert store.take_gate("instance#i", "b") == "b"


def test_an_intent_is_written_once(tables: None) -> None:
    store = IncidentTable("incidents")
    assert store.intend("x", "replace", NOW) and not store.intend("x", "replace", NOW)
    store.conclude("x", "replace", "accepted", NOW)
    effect = store.effect("x", "replace")
    assert effect is not None and effect.result == "accepted"


def test_open_incidents_are_listed_until_they_are_forgotten(tables: None) -> None:
    store, first, second = IncidentTable("incidents"), an_incident(), an_incident(2)
    store.open(first, "alarm", None)
    store.open(second, "alarm", store.delivery("key", first.node))
    assert set(store.open_incidents()) == {first.id, second.id}
    store.forget_open(first.id)
    assert store.open_incidents() == (second.id,)
    assert store.get(first.id).id == first.id  # only the list forgets


def test_effects_of_an_incident_are_listed_with_their_results(tables: None) -> None:
    store = IncidentTable("incidents")
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


def an_approval() -> Approval:
    return Approval(
        "id", "incident", Action.REPLACE, "node", INSTANCE, "hash", "2026-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z", (Fact("Node", "n"),),
    )  # fmt: skip


def test_an_approval_that_has_expired_is_not_decided_whoever_read_it_before(tables: None) -> None:
    store = ApprovalTable("approvals")
    store.create(an_approval(), "token")
    assert not store.decide("id", Answer.APPROVE, "late", "holder", NOW + timedelta(days=1, seconds=1))
    assert store.decide("id", Answer.APPROVE, "seen", "holder", NOW + timedelta(days=1, seconds=-1))


def test_an_approval_is_decided_once_and_never_shows_its_token(tables: None) -> None:
    store, approval = ApprovalTable("approvals"), an_approval()
    store.create(approval, "token-1")
    assert store.get("id") == approval and "token" not in repr(store.get("id"))
    store.create(replace(approval, reason="another"), "token-2")  # a retry: only the token is new
    assert store.task_token("id") == "token-2"
    assert store.decide("id", Answer.APPROVE, "seen", "holder", NOW)
    assert not store.decide("id", Answer.KEEP, "no", "holder", NOW)
    assert not store.end("id", ApprovalState.EXPIRED)
    store.mark_delivered("id")
    store.mark_mailed("id", "b@example.com")
    store.mark_mailed("id", "a@example.com")
    found = store.get("id")
    assert found is not None
    assert (found.state, found.answer) == (ApprovalState.DELIVERED, Answer.APPROVE)
    assert found.mailed == ("a@example.com", "b@example.com")


def test_a_link_leads_to_its_approval_and_is_none_itself(tables: None) -> None:
    store = ApprovalTable("approvals")
    store.create(an_approval(), "token")
    store.add_link("a" * 64, Link("id", "a@example.com"))
    assert store.link("a" * 64) == Link("id", "a@example.com")
    assert store.link("b" * 64) is None and store.get("a" * 64) is None
    assert store.link("id") is None  # an approval's id is no secret's hash


def test_an_approval_of_the_version_before_is_read_and_its_link_still_leads_to_it(tables: None) -> None:
    """It stood under the hash of its one secret and said "mailed" as a flag, also inside the document."""
    old = json.loads(encode(replace(an_approval(), approval_id="c" * 64)))
    since = "mailed job_uid row alarm ranks history telemetry command synthetic execution"
    for new in since.split():
        del old[new]
    item = {
        "approval_id": "c" * 64, "incident_id": "incident", "document": json.dumps({**old, "mailed": True}),
        "state": "PENDING", "mailed": True, "expires_at": old["expires_at"], "task_token": "token",
    }  # fmt: skip
    boto3.resource("dynamodb").Table("approvals").put_item(Item=item)
    store = ApprovalTable("approvals")
    link = store.link("c" * 64)
    assert link is not None
    found = store.get(link.approval_id)
    assert found is not None and found.mailed_to("anybody@example.com")
    assert store.decide(link.approval_id, Answer.KEEP, "seen", link.approver, NOW)


def test_an_expired_approval_cannot_be_decided(tables: None) -> None:
    store = ApprovalTable("approvals")
    store.create(an_approval(), "token")
    assert store.end("id", ApprovalState.EXPIRED)
    assert not store.decide("id", Answer.APPROVE, "late", "holder", NOW)


def test_a_question_is_superseded_whatever_was_answered_and_closed_only_while_it_is_open(
    tables: None,
) -> None:
    for store in (ApprovalTable("approvals"), FakeApprovals()):
        store.create(an_approval(), "token")
        assert store.end("id", ApprovalState.CLOSED)
        assert not store.end("id", ApprovalState.EXPIRED) and not store.end("none", ApprovalState.CLOSED)
        store.create(replace(an_approval(), approval_id="id-2"), "token")
        assert store.decide("id-2", Answer.APPROVE, "seen", "holder", NOW)
        assert not store.end("id-2", ApprovalState.CLOSED)
        assert store.end("id-2", ApprovalState.SUPERSEDED) and not store.end("none", ApprovalState.SUPERSEDED)
        found = store.get("id-2")
        assert found is not None and not found.decided and found.answer is Answer.APPROVE


def test_a_verified_registration_is_not_replaced(tables: None) -> None:
    store = RegistrationTable("registrations")
    unverified = Registered("job", 2, "node", "{}", False, "no pod", None, None, "2026-01-01T00:00:00Z")
    verified = replace(unverified, text="{1}", verified=True, reason="", launch_time="t", group="gpu")
    store.put(unverified)
    store.put(verified)
    store.put(replace(unverified, text="forged"))
    assert store.get("job", 2, "node") == verified
    assert store.after("job", 1) == (verified,) and store.after("job", 2) == ()
    store.put(replace(unverified, node="claimed"))
    assert store.nodes("job", 2) == 1 and store.nodes("job", 1) == 0  # only what was verified is counted


def test_a_row_is_released_when_its_last_holder_lets_go(tables: None) -> None:
    """The fake keeps what the table keeps, after each move of two incidents on one subject."""
    real, fake = QuarantineTable("quarantine"), FakeQuarantine()
    moves = "hold a, hold b, release a, release c, release a, release b, hold b, release b, release d"
    for number, (move, incident) in enumerate(m.split() for m in moves.split(", ")):
        stores: tuple[QuarantineTable | FakeQuarantine, ...] = (real, fake)
        answers = [
            getattr(s, move)("gpu#g", (f"{incident}{number}", incident), incident, NOW) for s in stores
        ]
        assert answers[0] == answers[1], (number, move, incident)
        item = real._table.get({"subject": "gpu#g"}) or {}
        row = fake.rows["gpu#g"]
        assert item["state"] == row["state"] and set(item["delivery_keys"]) == row["delivery_keys"]
        assert set(item.get("holders", ())) == row["holders"]
    assert row["state"] == "released"


def test_a_hold_beside_one_of_the_version_before_keeps_both(tables: None) -> None:
    store = QuarantineTable("quarantine")
    old = {
        "subject": "gpu#g",
        "state": "held",
        "incident_id": "a",
        "delivery_key": "k",
        "delivery_keys": {"k"},
    }
    store._table.put(old)
    assert not store.release("gpu#g", ("z",), "z", NOW)
    store.hold("gpu#g", ("l",), "b", NOW)
    assert not store.release("gpu#g", ("l",), "b", NOW)
    assert store.release("gpu#g", ("k",), "a", NOW)


def test_a_quarantine_row_belongs_to_the_incident_that_holds_it(tables: None) -> None:
    store = QuarantineTable("quarantine")
    store.put_mode(Mode.REPLACE)
    store.hold("instance#i", ("older", "key"), "a", NOW)
    assert not store.release("instance#i", ("another",), "b", NOW)
    assert store.release("instance#i", ("older", "key"), "a", NOW)
    item = store._table.get({"subject": "instance#i"}) or {}
    assert item["state"] == "released" and item["released_at"] and item["delivery_key"] == "key"
    assert item["delivery_keys"] == ["another", "key", "older"]
    assert (store._table.get({"subject": "mode"}) or {})["mode"] == "replace"
