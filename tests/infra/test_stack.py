"""What stands in the template: resources, their wiring and their defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra import functions
from infra.bundling import ROOT
from infra.config import SettingsError
from infra.functions import FUNCTIONS, WORKFLOW_STEPS
from infra.logical_ids import camel
from infra.synth import synthesize
from lambdas.settings import HANDLERS, VARIABLES
from tests.infra.reading import of_type

Resources = dict[str, Any]

KEYS = {
    "IncidentTable": ["pk", "sk"],
    "ApprovalTable": ["approval_id"],
    "RegistrationTable": ["job_uid", "attempt_node"],
    "QuarantineTable": ["subject"],
    "ControlTable": ["key"],
}


def test_the_stack_holds_these_resources_and_no_others(resources: Resources) -> None:
    assert Counter(item["Type"] for item in resources.values()) == {
        "AWS::ApiGatewayV2::Api": 1,
        "AWS::ApiGatewayV2::Integration": 2,
        "AWS::ApiGatewayV2::Route": 3,
        "AWS::ApiGatewayV2::Stage": 1,
        "AWS::CloudWatch::Alarm": 5,
        "AWS::DynamoDB::Table": 5,
        "AWS::Events::EventBus": 1,
        "AWS::Events::Rule": 2,
        "AWS::IAM::ManagedPolicy": 1,
        "AWS::IAM::Role": 13,
        "AWS::Lambda::EventSourceMapping": 2,
        "AWS::Lambda::Function": 12,
        "AWS::Lambda::Permission": 3,
        "AWS::Logs::LogGroup": 14,
        "AWS::SNS::Subscription": 1,
        "AWS::SNS::Topic": 1,
        "AWS::SNS::TopicPolicy": 1,
        "AWS::SQS::Queue": 4,
        "AWS::SQS::QueuePolicy": 4,
        "AWS::StepFunctions::StateMachine": 1,
    }


def test_names_that_the_local_cloud_and_operators_rely_on_are_stable(resources: Resources) -> None:
    expected = {
        "SdcBus", "AlarmRule", "RegistrationRule", "AlarmQueue", "RegistrationQueue", "AlarmQueueMapping",
        "RegistrationQueueMapping", "ApprovalTopic", "IncidentWorkflow", "ReviewApi", *KEYS,
        *(f"{camel(name)}Function" for name in FUNCTIONS),
    }  # fmt: skip
    assert expected <= resources.keys()


@pytest.mark.parametrize("table", KEYS)
def test_tables_are_keyed_recoverable_and_outlive_the_stack(resources: Resources, table: str) -> None:
    properties = resources[table]["Properties"]
    assert [key["AttributeName"] for key in properties["KeySchema"]] == KEYS[table]
    assert {item["AttributeType"] for item in properties["AttributeDefinitions"]} == {"S"}
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"] is True
    assert resources[table]["DeletionPolicy"] == resources[table]["UpdateReplacePolicy"] == "Retain"


def test_the_index_of_approvals_holds_no_task_token(resources: Resources) -> None:
    (index,) = resources["ApprovalTable"]["Properties"]["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "by_incident"
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_holds_exactly_the_variables_that_its_settings_name(
    resources: Resources, name: str
) -> None:
    properties = resources[f"{camel(name)}Function"]["Properties"]
    assert set(properties["Environment"]["Variables"]) == set(VARIABLES[name])
    assert properties["Handler"] == HANDLERS[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_its_own_role_log_and_bounds(resources: Resources, name: str) -> None:
    properties = resources[f"{camel(name)}Function"]["Properties"]
    assert properties["Role"] == {"Fn::GetAtt": [f"{camel(name)}Role", "Arn"]}
    assert properties["LoggingConfig"] == {"LogGroup": {"Ref": f"{camel(name)}Log"}}
    assert properties["Runtime"] == "python3.12"
    assert properties["Architectures"] == ["arm64"]
    assert properties["Timeout"] <= 120
    assert "ReservedConcurrentExecutions" not in properties  # small accounts would fail on it


def test_the_functions_are_those_of_the_settings() -> None:
    assert set(FUNCTIONS) == set(VARIABLES) == set(HANDLERS)
    assert set(WORKFLOW_STEPS) < set(FUNCTIONS)


def test_a_variable_that_the_stack_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(functions.VARIABLES, "decide", (*VARIABLES["decide"], "NO_SUCH_THING"))
    with pytest.raises(SettingsError, match=r"decide needs NO_SUCH_THING.*infra/places\.py"):
        synthesize(tmp_path)


@pytest.mark.parametrize(
    ("name", "detail_type", "function"),
    [("Alarm", "SDC Alarm", "IngestFunction"), ("Registration", "SDC Node Registered", "RegisterFunction")],
)
def test_events_reach_their_function_or_a_dead_letter_queue(
    resources: Resources, name: str, detail_type: str, function: str
) -> None:
    rule = resources[f"{name}Rule"]["Properties"]
    queue = resources[f"{name}Queue"]["Properties"]
    mapping = resources[f"{name}QueueMapping"]["Properties"]
    dead_letters = {"Fn::GetAtt": [f"{name}DeadLetters", "Arn"]}

    assert rule["EventBusName"] == {"Ref": "SdcBus"}
    assert rule["EventPattern"] == {"source": ["training.sdc"], "detail-type": [detail_type]}
    (target,) = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": [f"{name}Queue", "Arn"]}
    assert target["DeadLetterConfig"]["Arn"] == dead_letters

    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == dead_letters
    assert queue["VisibilityTimeout"] >= 6 * resources[function]["Properties"]["Timeout"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["EventSourceArn"] == {"Fn::GetAtt": [f"{name}Queue", "Arn"]}
    assert mapping["FunctionName"] == {"Ref": function}


def test_queues_are_encrypted_and_refuse_plain_http(resources: Resources) -> None:
    queues = of_type(resources, "AWS::SQS::Queue")
    assert all(queue["SqsManagedSseEnabled"] for queue in queues.values())
    for policy in of_type(resources, "AWS::SQS::QueuePolicy").values():
        assert "aws:SecureTransport" in json.dumps(policy)


def test_the_page_has_three_routes_and_nothing_else(resources: Resources) -> None:
    routes = of_type(resources, "AWS::ApiGatewayV2::Route")
    assert {route["RouteKey"] for route in routes.values()} == {
        "GET /review/{secret}", "HEAD /review/{secret}", "POST /review/{secret}",
    }  # fmt: skip
    integrations = {
        name: json.dumps(item) for name, item in of_type(resources, "AWS::ApiGatewayV2::Integration").items()
    }
    for route in routes.values():
        behind = integrations[route["Target"]["Fn::Join"][1][1]["Ref"]]
        wanted = "ApprovalDecideFunction" if route["RouteKey"].startswith("POST") else "ApprovalShowFunction"
        assert wanted in behind


def test_the_access_log_holds_no_link(resources: Resources) -> None:
    (stage,) = of_type(resources, "AWS::ApiGatewayV2::Stage").values()
    logged = set(json.loads(stage["AccessLogSettings"]["Format"]).values())
    assert not [name for name in logged if "path" in name.lower() or "query" in name.lower()]
    assert stage["DefaultRouteSettings"]["ThrottlingRateLimit"] <= 10


def test_an_approver_gets_only_mails_addressed_to_them(resources: Resources) -> None:
    (subscription,) = of_type(resources, "AWS::SNS::Subscription").values()
    assert subscription["Protocol"] == "email"
    assert subscription["FilterPolicy"] == {"approver": [subscription["Endpoint"]]}


def test_no_log_is_kept_forever(resources: Resources) -> None:
    assert all(log["RetentionInDays"] == 90 for log in of_type(resources, "AWS::Logs::LogGroup").values())


def test_what_the_agent_needs_is_an_output(template: dict[str, Any]) -> None:
    assert template["Outputs"]["EventBusName"]["Value"] == {"Ref": "SdcBus"}
    assert template["Outputs"]["QuarantineTableName"]["Value"] == {"Ref": "QuarantineTable"}
    assert template["Outputs"]["TrainingPodPolicyArn"]["Value"] == {"Ref": "TrainingPodPolicy"}


def test_no_physical_name_but_the_bus_blocks_a_second_stack(resources: Resources) -> None:
    assert resources["SdcBus"]["Properties"]["Name"] == "training-sdc-demo"
    for item in resources.values():
        named = {"TableName", "QueueName", "TopicName", "FunctionName", "RoleName", "LogGroupName"}
        if item["Type"] not in ("AWS::Lambda::EventSourceMapping", "AWS::Lambda::Permission"):
            assert not named & item.get("Properties", {}).keys()


def test_alarms_act_when_there_is_a_topic(tmp_path: Path) -> None:
    topic = "arn:aws:sns:us-east-1:111122223333:oncall"
    made = json.loads(synthesize(tmp_path, {"alarm_topic_arn": topic}).read_text())["Resources"]
    alarms = of_type(made, "AWS::CloudWatch::Alarm")
    assert len(alarms) == 5
    assert all(alarm["AlarmActions"] == [topic] for alarm in alarms.values())


def test_synthesizing_twice_gives_the_same_bytes(assembly: Path, tmp_path: Path) -> None:
    assert synthesize(tmp_path).read_bytes() == assembly.read_bytes()


def test_app_writes_the_same_template_without_the_cli(assembly: Path, tmp_path: Path) -> None:
    """Also: no account, no credentials, no node on PATH, no banner."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CDK_OUTDIR": str(tmp_path / "out")}
    environment |= {k: v for k, v in os.environ.items() if k in ("TMPDIR", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / assembly.name).read_bytes() == assembly.read_bytes()


def test_app_says_which_setting_is_wrong(tmp_path: Path) -> None:
    environment = {**os.environ, "CDK_CONTEXT_JSON": '{"mode": "destroy"}', "CDK_OUTDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "mode: Input should be" in done.stderr
    assert "Traceback" not in done.stderr
