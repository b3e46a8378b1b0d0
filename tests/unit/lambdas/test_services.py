"""The services' answers, by botocore's stubber. No sockets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber

from lambdas.adapters import aws, sagemaker
from lambdas.adapters.sns import ApprovalTopic
from lambdas.adapters.stepfunctions import StateMachine, TaskCallback
from lambdas.domain.errors import (
    CallbackGoneError,
    OutcomeUnknownError,
    RefusedError,
    ThrottledError,
    UnavailableError,
)
from tests.events import builder

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
INSTANCE = builder.INSTANCES[1]


@pytest.fixture
def replacing(clients: None) -> Iterator[Stubber]:
    with Stubber(sagemaker.single_attempt_client()) as stubber:
        yield stubber


def test_a19_the_replacing_client_makes_exactly_one_attempt(clients: None) -> None:
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


def test_a19_a_read_timeout_is_unknown(clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_all_pages_of_nodes_are_read(clients: None) -> None:
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


def test_an_unstated_node_recovery_counts_as_automatic(clients: None) -> None:
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


def test_only_confirmed_email_subscriptions_are_approvers(clients: None) -> None:
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


def test_a_mail_carries_its_approver_for_the_filter(clients: None) -> None:
    expected = {
        "TopicArn": "t", "Subject": "s", "Message": "m",
        "MessageAttributes": {"approver": {"DataType": "String", "StringValue": "a@example.com"}},
    }  # fmt: skip
    with Stubber(aws.client("sns")) as stubber:
        stubber.add_response("publish", {"MessageId": "1"}, expected)
        ApprovalTopic("t").send("a@example.com", "s", "m")


def test_an_execution_that_already_exists_is_success(clients: None) -> None:
    with Stubber(aws.client("stepfunctions")) as stubber:
        stubber.add_client_error("start_execution", "ExecutionAlreadyExists")
        StateMachine("arn:aws:states:us-east-1:123456789012:stateMachine:x").start("id", "id-1")
        stubber.add_client_error("start_execution", "ServiceUnavailable", http_status_code=503)
        with pytest.raises(UnavailableError):
            StateMachine("arn:aws:states:us-east-1:123456789012:stateMachine:x").start("id", "id-1")


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_a15_a_dead_token_is_gone(clients: None, code: str) -> None:
    with Stubber(aws.client("stepfunctions")) as stubber:
        stubber.add_client_error("send_task_success", code)
        with pytest.raises(CallbackGoneError):
            TaskCallback().succeed("token", {})
