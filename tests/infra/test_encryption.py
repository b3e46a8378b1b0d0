"""Encryption, and the policies that let every publisher publish and nobody else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.reading import as_list, of_type

Resources = dict[str, Any]
KEY = {"Fn::GetAtt": ["DataKey", "Arn"]}


def test_everything_that_keeps_data_uses_the_key(resources: Resources) -> None:
    for table in of_type(resources, "AWS::DynamoDB::Table").values():
        assert table["SSESpecification"] == {"KMSMasterKeyId": KEY, "SSEEnabled": True, "SSEType": "KMS"}
        assert table["DeletionProtectionEnabled"] is True
    for queue in of_type(resources, "AWS::SQS::Queue").values():
        assert queue["KmsMasterKeyId"] == KEY
    for topic in of_type(resources, "AWS::SNS::Topic").values():
        assert topic["KmsMasterKeyId"] == KEY


def test_the_key_rotates_and_outlives_the_stack_like_the_tables_it_opens(resources: Resources) -> None:
    key = resources["DataKey"]
    assert key["Properties"]["EnableKeyRotation"] is True
    assert key["DeletionPolicy"] == key["UpdateReplacePolicy"] == "Retain"


def key_statements(resources: Resources) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = resources["DataKey"]["Properties"]["KeyPolicy"]["Statement"]
    return found


@pytest.mark.parametrize("publisher", ["cloudwatch", "events", "sns"])
def test_a_publisher_may_encrypt_what_it_sends(resources: Resources, publisher: str) -> None:
    """Without it an alarm or an event is dropped in silence."""
    may = {
        action
        for statement in key_statements(resources)
        if f"{publisher}.amazonaws.com" in as_list(statement["Principal"].get("Service", []))
        and "Condition" not in statement
        for action in as_list(statement["Action"])
    }
    assert {"kms:Decrypt", "kms:GenerateDataKey*"} <= may


def test_callers_use_the_key_only_through_the_service_that_holds_the_data(resources: Resources) -> None:
    (callers,) = [s for s in key_statements(resources) if s["Principal"] == {"AWS": "*"}]
    condition = callers["Condition"]["StringEquals"]
    assert condition["kms:CallerAccount"] == "123456789012"
    services = {json.dumps(name).split(".")[0].split('"')[-1] for name in condition["kms:ViaService"]}
    assert services == {"dynamodb", "sqs", "sns"}


def test_no_role_holds_a_kms_action(resources: Resources) -> None:
    assert "kms:" not in json.dumps([of_type(resources, "AWS::IAM::Role"), resources["TrainingPodPolicy"]])


def topic_policy(resources: Resources, topic: str) -> list[dict[str, Any]]:
    (policy,) = [
        item["PolicyDocument"]["Statement"]
        for item in of_type(resources, "AWS::SNS::TopicPolicy").values()
        if item["Topics"] == [{"Ref": topic}]
    ]
    return policy  # type: ignore[no-any-return]


@pytest.mark.parametrize("publisher", ["cloudwatch", "events"])
def test_alarms_and_events_may_publish_to_the_operators(resources: Resources, publisher: str) -> None:
    allowed = [s for s in topic_policy(resources, "OperatorTopic") if s["Effect"] == "Allow"]
    (statement,) = [s for s in allowed if s["Principal"] == {"Service": f"{publisher}.amazonaws.com"}]
    assert statement["Action"] == "sns:Publish"
    assert statement["Resource"] == {"Ref": "OperatorTopic"}


def test_no_service_may_publish_to_the_approvers(resources: Resources) -> None:
    assert [s["Effect"] for s in topic_policy(resources, "ApprovalTopic")] == ["Deny"]  # of plain HTTP


def test_queues_and_topics_refuse_plain_http(resources: Resources) -> None:
    for kind, count in (("AWS::SQS::QueuePolicy", 6), ("AWS::SNS::TopicPolicy", 2)):
        policies = of_type(resources, kind)
        assert len(policies) == count
        assert all("aws:SecureTransport" in json.dumps(policy) for policy in policies.values())


def test_a_queue_takes_events_of_this_account_only(resources: Resources) -> None:
    for policy in of_type(resources, "AWS::SQS::QueuePolicy").values():
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow":
                assert statement["Principal"] == {"Service": "events.amazonaws.com"}
                assert "aws:SourceArn" in json.dumps(statement) or "aws:SourceAccount" in json.dumps(
                    statement
                )


def test_without_a_key_of_ones_own_aws_encrypts(other: Resources) -> None:
    assert not of_type(other, "AWS::KMS::Key")
    assert all(queue["SqsManagedSseEnabled"] for queue in of_type(other, "AWS::SQS::Queue").values())
    assert all(t["SSESpecification"]["SSEEnabled"] for t in of_type(other, "AWS::DynamoDB::Table").values())
