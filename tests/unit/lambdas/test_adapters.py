"""The tables' conditions on moto's DynamoDB, and the services' answers by botocore's stubber. No sockets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber
from moto import mock_aws

from lambdas.adapters import aws, sagemaker
from lambdas.adapters.approvals import ApprovalTable
from lambdas.adapters.controls import ControlTable
from lambdas.adapters.incidents import IncidentTable
from lambdas.adapters.quarantine import QuarantineTable
from lambdas.adapters.registrations import RegistrationTable
from lambdas.adapters.sns import ApprovalTopic
from lambdas.adapters.stepfunctions import StateMachine, TaskCallback
from lambdas.domain.approval import Action, Answer, Approval, ApprovalState, Fact
from lambdas.domain.errors import (
    CallbackGoneError,
    ConflictError,
    HaltedError,
    OutcomeUnknownError,
    RefusedError,
    ThrottledError,
    UnavailableError,
)
from lambdas.domain.incident import Incident, State, Target, incident_id
from lambdas.ports import Delivery, HistoryEntry, Registered
from tests.events import builder
from training_agent.contract import Check, Mode

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
KEYS = {
    "incidents": ("pk", "sk"),
    "approvals": ("approval_id",),
    "registrations": ("job_uid", "attempt_node"),
    "quarantine": ("subject",),
    "controls": ("key",),
}
INSTANCE = builder.INSTANCES[1]


@pytest.fixture(scope="module")
def clients() -> Iterator[None]:
    """Clients made once with dummy credentials: making one takes a quarter of a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patched.delenv("AWS_ENDPOINT_URL", raising=False)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patched.setenv(name, "testing")
        for cached in (aws.client, sagemaker.single_attempt_client):
            cached.cache_clear()
        yield
        for cached in (aws.client, sagemaker.single_attempt_client):
            cached.cache_clear()


@pytest.fixture
def tables(clients: None) -> Iterator[None]:
    with mock_aws():
        for table, keys in KEYS.items():
            aws.client("dynamodb").create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": k, "AttributeType": "S"} for k in keys],
                KeySchema=[
                    {"AttributeName": k, "KeyType": t} for k, t in zip(keys, ("HASH", "RANGE"), strict=False)
                ],
            )
        yield


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


def test_an_approval_is_decided_once_and_never_shows_its_token(tables: None) -> None:
    store, approval = ApprovalTable("approvals"), an_approval()
    store.create(approval, "token-1")
    assert store.get("id") == approval and "token" not in repr(store.get("id"))
    store.renew_token("id", "token-2")
    assert store.task_token("id") == "token-2"
    assert store.decide("id", Answer.APPROVE, "seen", "holder", NOW)
    assert not store.decide("id", Answer.KEEP, "no", "holder", NOW)
    assert not store.end("id", ApprovalState.EXPIRED)
    store.mark_delivered("id")
    store.mark_mailed("id")
    found = store.get("id")
    assert found is not None
    assert (found.state, found.answer, found.mailed) == (ApprovalState.DELIVERED, Answer.APPROVE, True)


def test_an_expired_approval_cannot_be_decided(tables: None) -> None:
    store = ApprovalTable("approvals")
    store.create(an_approval(), "token")
    assert store.end("id", ApprovalState.EXPIRED)
    assert not store.decide("id", Answer.APPROVE, "late", "holder", NOW)


def test_a_verified_registration_is_not_replaced(tables: None) -> None:
    store = RegistrationTable("registrations")
    unverified = Registered("job", 2, "node", "{}", False, "no pod", None, None, "t")
    verified = replace(unverified, text="{1}", verified=True, reason="", launch_time="t", group="gpu")
    store.put(unverified)
    store.put(verified)
    store.put(replace(unverified, text="forged"))
    assert store.get("job", 2, "node") == verified
    assert store.after("job", 1) == (verified,) and store.after("job", 2) == ()


def test_a_quarantine_row_belongs_to_the_incident_that_holds_it(tables: None) -> None:
    store = QuarantineTable("quarantine")
    store.put_mode(Mode.REPLACE)
    store.hold("instance#i", "key", "a", NOW)
    assert not store.release("instance#i", "key", "b", NOW)
    assert store.release("instance#i", "key", "a", NOW)
    item = store._table.get({"subject": "instance#i"}) or {}
    assert item["state"] == "released" and item["released_at"] and item["delivery_key"] == "key"
    assert (store._table.get({"subject": "mode"}) or {})["mode"] == "replace"


def put_control(key: str, value: Any) -> None:
    boto3.resource("dynamodb").Table("controls").put_item(Item={"key": key, "value": value})


@pytest.mark.parametrize(("value", "on"), [(True, True), (False, False), ("off", True), ("", True)])
def test_anything_but_a_clear_no_is_a_kill_switch(tables: None, value: Any, on: bool) -> None:
    put_control("kill_switch", value)
    assert ControlTable("controls").read().kill_switch is on


def test_control_rows_default_to_the_deployed_mode_and_no_kill_switch(tables: None) -> None:
    control = ControlTable("controls").read()
    assert control.mode is None and control.kill_switch is False
    put_control("mode", "contain")
    assert ControlTable("controls").read().mode is Mode.CONTAIN


def test_an_unreadable_mode_halts(tables: None) -> None:
    put_control("mode", "full speed")
    with pytest.raises(HaltedError):
        ControlTable("controls").read()


def test_a_lock_has_one_holder(tables: None) -> None:
    store = ControlTable("controls")
    assert store.lock("replacement", "a") and store.lock("replacement", "a")
    assert not store.lock("replacement", "b")
    store.unlock("replacement", "b")
    assert not store.lock("replacement", "b")
    store.unlock("replacement", "a")
    assert store.lock("replacement", "b")


def test_replacements_are_remembered(tables: None) -> None:
    store = ControlTable("controls")
    assert store.replacements() == ()
    store.count_replacement("a", NOW)
    store.count_replacement("b", NOW)
    assert store.replacements() == (NOW, NOW)


def test_a_missing_table_is_refused_and_not_taken_for_empty(tables: None) -> None:
    with pytest.raises(RefusedError):
        ControlTable("nowhere").read()


@pytest.fixture
def replacing(tables: None) -> Iterator[Stubber]:
    with Stubber(sagemaker.single_attempt_client()) as stubber:
        yield stubber


def test_a19_the_replacing_client_makes_exactly_one_attempt(tables: None) -> None:
    assert sagemaker.single_attempt_client().meta.config.retries["total_max_attempts"] == 1


def test_a24_failed_inside_an_http_200_is_seen(replacing: Stubber) -> None:
    failed = [{"NodeId": INSTANCE, "ErrorCode": "InstanceIdInUse", "Message": "busy"}]
    replacing.add_response(
        "batch_replace_cluster_nodes", {"Failed": failed}, {"ClusterName": "demo", "NodeIds": [INSTANCE]}
    )
    answer = sagemaker.HyperPod("demo").replace(INSTANCE)
    assert (answer.accepted, answer.code) == (False, "InstanceIdInUse")


def test_a_successful_replacement_names_the_instance(replacing: Stubber) -> None:
    replacing.add_response("batch_replace_cluster_nodes", {"Successful": [INSTANCE]})
    assert sagemaker.HyperPod("demo").replace(INSTANCE).accepted


@pytest.mark.parametrize("answer", [{}, {"Successful": [builder.INSTANCES[0]]}])
def test_a24_an_answer_about_nobody_or_another_node_is_unknown(
    replacing: Stubber, answer: dict[str, Any]
) -> None:
    replacing.add_response("batch_replace_cluster_nodes", answer)
    with pytest.raises(OutcomeUnknownError):
        sagemaker.HyperPod("demo").replace(INSTANCE)


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("ThrottlingException", 400, ThrottledError),
        ("AccessDeniedException", 403, RefusedError),
        ("ResourceNotFound", 404, RefusedError),
        ("InternalFailure", 500, OutcomeUnknownError),
    ],
)
def test_service_errors_of_a_replacement(
    replacing: Stubber, code: str, status: int, error: type[Exception]
) -> None:
    replacing.add_client_error("batch_replace_cluster_nodes", code, http_status_code=status)
    with pytest.raises(error):
        sagemaker.HyperPod("demo").replace(INSTANCE)


def test_a19_a_read_timeout_is_unknown(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging:
        def batch_replace_cluster_nodes(self, **_: Any) -> None:
            raise ReadTimeoutError(endpoint_url="https://x")

    monkeypatch.setattr(sagemaker, "single_attempt_client", Hanging)
    with pytest.raises(OutcomeUnknownError):
        sagemaker.HyperPod("demo").replace(INSTANCE)


@pytest.mark.parametrize("bad", ["hyperpod-i-0a1b2c3d4e5f60001", "i-XYZ", "", "i-0a1b2c3d4e5f60001\n"])
def test_t15_a_malformed_id_is_never_sent(replacing: Stubber, bad: str) -> None:
    with pytest.raises(RefusedError):
        sagemaker.HyperPod("demo").replace(bad)


def test_all_pages_of_nodes_are_read(tables: None) -> None:
    def node(instance: str) -> dict[str, Any]:
        return {
            "InstanceGroupName": "gpu", "InstanceId": instance, "InstanceType": "ml.p5.48xlarge",
            "LaunchTime": NOW, "InstanceStatus": {"Status": "Running"},
        }  # fmt: skip

    with Stubber(aws.client("sagemaker")) as stubber:
        page = {"ClusterNodeSummaries": [node(builder.INSTANCES[0])], "NextToken": "n"}
        stubber.add_response("list_cluster_nodes", page)
        stubber.add_response("list_cluster_nodes", {"ClusterNodeSummaries": [node(INSTANCE)]})
        assert [n.instance_id for n in sagemaker.HyperPod("demo").nodes()] == [builder.INSTANCES[0], INSTANCE]


def test_an_unstated_node_recovery_counts_as_automatic(tables: None) -> None:
    with Stubber(aws.client("sagemaker")) as stubber:
        stubber.add_response(
            "describe_cluster",
            {
                "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/abcdefghijkl",
                "ClusterStatus": "InService",
                "InstanceGroups": [
                    {"InstanceGroupName": "gpu", "OnStartDeepHealthChecks": ["InstanceStress"]}
                ],
            },
        )
        facts = sagemaker.HyperPod("demo").describe()
    assert facts.node_recovery == "Automatic"
    assert facts.on_start_checks == {"gpu": ("InstanceStress",)}


def test_only_confirmed_email_subscriptions_are_approvers(tables: None) -> None:
    def subscription(arn: str, protocol: str, endpoint: str) -> dict[str, str]:
        return {
            "SubscriptionArn": arn,
            "Protocol": protocol,
            "Endpoint": endpoint,
            "TopicArn": "t",
            "Owner": "1",
        }

    with Stubber(aws.client("sns")) as stubber:
        stubber.add_response(
            "list_subscriptions_by_topic",
            {
                "Subscriptions": [
                    subscription("arn:aws:sns:us-east-1:1:t:1", "email", "a@example.com"),
                    subscription("PendingConfirmation", "email", "b@example.com"),
                    subscription("Deleted", "email", "c@example.com"),
                    subscription("arn:aws:sns:us-east-1:1:t:2", "sqs", "arn:aws:sqs:us-east-1:1:q"),
                ]
            },
        )
        assert ApprovalTopic("t").approvers() == ("a@example.com",)


def test_a_mail_carries_its_approver_for_the_filter(tables: None) -> None:
    expected = {
        "TopicArn": "t", "Subject": "s", "Message": "m",
        "MessageAttributes": {"approver": {"DataType": "String", "StringValue": "a@example.com"}},
    }  # fmt: skip
    with Stubber(aws.client("sns")) as stubber:
        stubber.add_response("publish", {"MessageId": "1"}, expected)
        ApprovalTopic("t").send("a@example.com", "s", "m")


def test_an_execution_that_already_exists_is_success(tables: None) -> None:
    with Stubber(aws.client("stepfunctions")) as stubber:
        stubber.add_client_error("start_execution", "ExecutionAlreadyExists")
        StateMachine("arn:aws:states:us-east-1:123456789012:stateMachine:x").start("id", "id-1")
        stubber.add_client_error("start_execution", "ServiceUnavailable", http_status_code=503)
        with pytest.raises(UnavailableError):
            StateMachine("arn:aws:states:us-east-1:123456789012:stateMachine:x").start("id", "id-1")


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_a15_a_dead_token_is_gone(tables: None, code: str) -> None:
    with Stubber(aws.client("stepfunctions")) as stubber:
        stubber.add_client_error("send_task_success", code)
        with pytest.raises(CallbackGoneError):
            TaskCallback().succeed("token", {})
