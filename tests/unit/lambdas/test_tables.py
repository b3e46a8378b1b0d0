"""Conditions of the tables of approvals, registrations and quarantine, on moto's DynamoDB. No sockets."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import boto3

from lambdas.adapters.approvals import ApprovalTable
from lambdas.adapters.quarantine import QuarantineTable
from lambdas.adapters.registrations import RegistrationTable
from lambdas.domain.approval import Action, Answer, Approval, ApprovalState, Fact, Link
from lambdas.domain.world import Registered
from tests.events import builder
from training_agent.contract import Mode, encode

from .fake_stores import FakeApprovals, FakeQuarantine

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
INSTANCE = builder.INSTANCES[1]


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
