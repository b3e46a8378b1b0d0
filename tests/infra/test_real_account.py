"""What shows in a real account only: limits, names that collide, what a network must let through."""

from __future__ import annotations

import json
from typing import Any

from infra.bundling import ROOT
from infra.config import read_settings
from infra.functions import deployed
from infra.permissions import PERMISSIONS, TELEMETRY, talks_to_kubernetes
from infra.synth import read_context
from tests.infra.reading import as_list, of_type

Resources = dict[str, Any]
NAMES = deployed(read_settings(read_context({"bundle": False})))


def test_no_physical_name_blocks_a_second_stack_or_a_deployment_after_destroy(resources: Resources) -> None:
    """What stays has a generated name; what has a name goes with the stack, and carries the cluster's."""
    assert resources["SdcBus"]["Properties"]["Name"] == "training-sdc-demo"
    named = {"TableName", "QueueName", "TopicName", "FunctionName", "RoleName", "LogGroupName", "AlarmName"}
    called = {
        name: next(iter(named & item.get("Properties", {}).keys()))
        for name, item in resources.items()
        if item["Type"] not in ("AWS::Lambda::EventSourceMapping", "AWS::Lambda::Permission")
        and named & item.get("Properties", {}).keys()
    }
    assert called == {"WorkflowLog": "LogGroupName", "ReviewAccessLog": "LogGroupName"}
    for name in called:
        assert resources[name]["Properties"]["LogGroupName"].endswith("/TrainingSdc-demo")
        assert resources[name]["DeletionPolicy"] == "Delete"


def test_logs_that_services_write_need_no_room_in_the_account_s_one_resource_policy(
    resources: Resources,
) -> None:
    for name in ("WorkflowLog", "ReviewAccessLog"):
        assert resources[name]["Properties"]["LogGroupName"].startswith("/aws/vendedlogs/")


def test_no_role_outgrows_what_iam_takes_inline(resources: Resources) -> None:
    """10,240 characters for all inline policies of a role; references grow to ARNs of about 100."""
    for name, role in of_type(resources, "AWS::IAM::Role").items():
        text = json.dumps([p["PolicyDocument"] for p in role["Policies"]], separators=(",", ":"))
        assert len(text) + 100 * text.count("Fn::GetAtt") < 10_240, name


def test_without_nat_each_called_service_is_an_endpoint_that_the_runbook_names() -> None:
    """Lambda itself calls sqs and ec2 for a function; a token for Kubernetes is signed, not asked for."""
    endpoints = {"sagemaker": "sagemaker.api", "cloudwatch": "monitoring", "aps": "aps-workspaces"}
    rows = [allow for name in NAMES if talks_to_kubernetes(name) for allow in PERMISSIONS[name]]
    called = {allow.service for allow in (*rows, TELEMETRY)} - {"sqs", "ec2"}
    listed = ", ".join(sorted(endpoints.get(service, service) for service in called))
    assert f"endpoints for {listed})" in (ROOT / "docs" / "operate.md").read_text()


def test_each_queue_behind_a_rule_lets_eventbridge_in(resources: Resources) -> None:
    """Dead-letter queues too: without it EventBridge drops what it cannot deliver, and says nothing."""
    let_in = {
        queue["Ref"]
        for policy in of_type(resources, "AWS::SQS::QueuePolicy").values()
        for queue in policy["Queues"]
        for s in policy["PolicyDocument"]["Statement"]
        if s["Effect"] == "Allow"
        and s["Principal"] == {"Service": "events.amazonaws.com"}
        and "sqs:SendMessage" in as_list(s["Action"])
    }
    targets = [t for rule in of_type(resources, "AWS::Events::Rule").values() for t in rule["Targets"]]
    dead = {target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0] for target in targets}
    alive = {target["Arn"]["Fn::GetAtt"][0] for target in targets} & of_type(
        resources, "AWS::SQS::Queue"
    ).keys()
    assert len(targets) == 7 and dead | alive == let_in
