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

import app
from infra import functions
from infra.bundling import ROOT
from infra.config import SettingsError, read_settings
from infra.functions import FUNCTIONS, WORKFLOW_STEPS, deployed
from infra.logical_ids import camel
from infra.permissions import talks_to_kubernetes
from infra.synth import read_context, synthesize
from lambdas.settings import HANDLERS, VARIABLES
from tests.infra.reading import actions, of_type, statements

Resources = dict[str, Any]

NAMES = deployed(read_settings(read_context({"bundle": False})))
KEYS = {
    "IncidentTable": ["pk", "sk"],
    "ApprovalTable": ["approval_id"],
    "RegistrationTable": ["job_uid", "attempt_node"],
    "QuarantineTable": ["subject"],
    "ControlTable": ["key"],
}


def test_the_stack_holds_these_resources_and_no_others(resources: Resources) -> None:
    functions = len(NAMES)
    assert Counter(item["Type"] for item in resources.values()) == {
        "AWS::ApiGatewayV2::Api": 1,
        "AWS::ApiGatewayV2::Integration": 3,
        "AWS::ApiGatewayV2::Route": 8,
        "AWS::ApiGatewayV2::Stage": 1,
        "AWS::CloudWatch::Alarm": 23,
        "AWS::CloudWatch::Dashboard": 1,
        "AWS::DynamoDB::Table": 5,
        "AWS::Events::Archive": 1,
        "AWS::Events::EventBus": 1,
        "AWS::Events::EventBusPolicy": 2,
        "AWS::Events::Rule": 7,
        "AWS::IAM::ManagedPolicy": 2,
        "AWS::IAM::Role": functions + 1,
        "AWS::KMS::Key": 1,
        "AWS::Lambda::EventSourceMapping": 3,
        "AWS::Lambda::Function": functions,
        "AWS::Lambda::Permission": 10,
        "AWS::Logs::LogGroup": functions + 2,
        "AWS::SNS::Subscription": 2,
        "AWS::SNS::Topic": 2,
        "AWS::SNS::TopicPolicy": 2,
        "AWS::SQS::Queue": 6,
        "AWS::SQS::QueuePolicy": 6,
        "AWS::StepFunctions::StateMachine": 1,
    }


def test_names_that_the_local_cloud_and_operators_rely_on_are_stable(resources: Resources) -> None:
    expected = {
        "SdcBus", "AlarmRule", "RegistrationRule", "AlarmQueue", "RegistrationQueue", "AlarmQueueMapping",
        "RegistrationQueueMapping", "ApprovalTopic", "IncidentWorkflow", "ReviewApi", *KEYS,
        *(f"{camel(name)}Function" for name in NAMES),
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


@pytest.mark.parametrize("name", NAMES)
def test_a_function_holds_exactly_the_variables_that_its_settings_name(
    resources: Resources, name: str
) -> None:
    properties = resources[f"{camel(name)}Function"]["Properties"]
    assert set(properties["Environment"]["Variables"]) == set(VARIABLES[name])
    assert properties["Handler"] == HANDLERS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_has_its_own_role_log_and_bounds(resources: Resources, name: str) -> None:
    properties = resources[f"{camel(name)}Function"]["Properties"]
    assert properties["Role"] == {"Fn::GetAtt": [f"{camel(name)}Role", "Arn"]}
    assert properties["LoggingConfig"] == {"LogGroup": {"Ref": f"{camel(name)}Log"}}
    assert properties["Runtime"] == "python3.12"
    assert properties["Architectures"] == ["arm64"]
    assert properties["Timeout"] <= 120
    assert "ReservedConcurrentExecutions" not in properties  # small accounts would fail on it


def test_the_functions_are_those_of_the_settings() -> None:
    assert set(VARIABLES) == set(HANDLERS) <= set(FUNCTIONS)
    assert set(WORKFLOW_STEPS) < set(FUNCTIONS)


def test_a_variable_that_the_stack_does_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(functions.VARIABLES, "decide", (*VARIABLES["decide"], "NO_SUCH_THING"))
    with pytest.raises(SettingsError, match=r"decide needs NO_SUCH_THING.*infra/places\.py"):
        synthesize(tmp_path)


@pytest.mark.parametrize(
    ("name", "detail_types", "function"),
    [
        ("Alarm", ["SDC Alarm", "SDC Targeted Audit Result"], "IngestFunction"),
        ("Registration", ["SDC Node Registered"], "RegisterFunction"),
    ],
)
def test_events_reach_their_function_or_a_dead_letter_queue(
    resources: Resources, name: str, detail_types: list[str], function: str
) -> None:
    rule = resources[f"{name}Rule"]["Properties"]
    queue = resources[f"{name}Queue"]["Properties"]
    mapping = resources[f"{name}QueueMapping"]["Properties"]
    dead_letters = {"Fn::GetAtt": [f"{name}DeadLetters", "Arn"]}

    assert rule["EventBusName"] == {"Ref": "SdcBus"}
    assert rule["EventPattern"] == {"source": ["training.sdc"], "detail-type": detail_types}
    (target,) = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": [f"{name}Queue", "Arn"]}
    assert target["DeadLetterConfig"]["Arn"] == dead_letters
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 86400, "MaximumRetryAttempts": 185}

    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == dead_letters
    assert queue["VisibilityTimeout"] >= 6 * resources[function]["Properties"]["Timeout"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["EventSourceArn"] == {"Fn::GetAtt": [f"{name}Queue", "Arn"]}
    assert mapping["FunctionName"] == {"Ref": function}


@pytest.mark.parametrize(("name", "function"), [("Reconcile", "Reconcile"), ("Drill", "Drill")])
def test_the_clock_calls_and_its_failures_are_kept(resources: Resources, name: str, function: str) -> None:
    rule = resources[f"{name}Schedule"]["Properties"]
    (target,) = rule["Targets"]
    dead = {"Fn::GetAtt": ["ClusterEventDeadLetters", "Arn"]}
    assert target["Arn"] == {"Fn::GetAtt": [f"{function}Function", "Arn"]}
    assert target["DeadLetterConfig"]["Arn"] == dead
    assert target["RetryPolicy"]["MaximumRetryAttempts"] == 2
    assert resources[f"{function}Function"]["Properties"]["DeadLetterConfig"] == {"TargetArn": dead}
    assert rule["State"] == "ENABLED"


def test_the_reconciler_runs_every_five_minutes_and_reads_the_cluster_s_events(resources: Resources) -> None:
    assert resources["ReconcileSchedule"]["Properties"]["ScheduleExpression"] == "rate(5 minutes)"
    mapping = resources["ClusterEventQueueMapping"]["Properties"]
    assert mapping["FunctionName"] == {"Ref": "ReconcileFunction"}
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def test_the_drill_can_be_switched_off(other: Resources) -> None:
    assert other["DrillSchedule"]["Properties"]["State"] == "DISABLED"


def test_one_way_to_replace_is_deployed_never_both(resources: Resources, other: Resources) -> None:
    assert "ReplaceByLabelFunction" not in resources
    assert "ReplaceFunction" not in other
    machine = json.dumps(other["IncidentWorkflow"]["Properties"]["DefinitionString"])
    assert "ReplaceByLabelFunction" in machine
    everyone = set().union(*(actions(role) for role in of_type(other, "AWS::IAM::Role").values()))
    assert "sagemaker:BatchReplaceClusterNodes" not in everyone


def test_no_log_is_kept_forever(resources: Resources) -> None:
    assert all(log["RetentionInDays"] == 90 for log in of_type(resources, "AWS::Logs::LogGroup").values())


def test_what_the_agent_needs_is_an_output(template: dict[str, Any]) -> None:
    assert template["Outputs"]["EventBusName"]["Value"] == {"Ref": "SdcBus"}
    assert template["Outputs"]["QuarantineTableName"]["Value"] == {"Ref": "QuarantineTable"}
    assert template["Outputs"]["TrainingPodPolicyArn"]["Value"] == {"Ref": "TrainingPodPolicy"}


def test_app_writes_the_same_template_without_the_cli(assembly: Path, tmp_path: Path) -> None:
    """Also: no account, no credentials, no node on PATH, no banner."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CDK_OUTDIR": str(tmp_path / "out")}
    environment |= {k: v for k, v in os.environ.items() if k in ("TMPDIR", "PYTHONPATH")}
    # A new home would have jsii unpack the whole construct library once more.
    cache = Path.home() / ".cache" / "aws" / "jsii" / "package-cache"
    environment.setdefault("JSII_RUNTIME_PACKAGE_CACHE_ROOT", str(cache))
    done = subprocess.run(
        [sys.executable, "app.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / assembly.name).read_bytes() == assembly.read_bytes()


def test_app_says_which_setting_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDK_CONTEXT_JSON", '{"mode": "destroy"}')
    monkeypatch.setenv("CDK_OUTDIR", str(tmp_path))
    assert app.main() == 2
    assert "mode: Input should be" in capsys.readouterr().err


def test_a_second_cluster_of_the_account_gets_a_stack_of_its_own(other_assembly: Path) -> None:
    made = json.loads(other_assembly.read_text())["Resources"]
    assert other_assembly.name == "TrainingSdc-second.template.json"
    assert made["SdcBus"]["Properties"]["Name"] == "training-sdc-second"


def test_only_functions_that_talk_to_kubernetes_go_into_its_network(other: Resources) -> None:
    inside = {
        name
        for name, item in of_type(other, "AWS::Lambda::Function").items()
        if item.get("VpcConfig")
        == {"SubnetIds": ["subnet-01234567", "subnet-89abcdef"], "SecurityGroupIds": ["sg-01234567"]}
    }
    named = [n.replace("replace", "replace_by_label") for n in NAMES]  # `other` replaces by label
    assert inside == {f"{camel(name)}Function" for name in named if talks_to_kubernetes(name)}
    assert {f"{camel(n)}Function" for n in ("contain", "resume")} < inside
    for name in named:
        allowed = actions(other[f"{camel(name)}Role"]["Properties"])
        assert ("ec2:CreateNetworkInterface" in allowed) == (f"{camel(name)}Function" in inside)


def test_registrations_alone_expire_by_themselves(resources: Resources) -> None:
    """Locks, gates and approvals end by terminal states, never by time."""
    expiring = {
        name: table["TimeToLiveSpecification"]["AttributeName"]
        for name, table in of_type(resources, "AWS::DynamoDB::Table").items()
        if "TimeToLiveSpecification" in table
    }
    assert expiring == {"RegistrationTable": "expires_at_epoch"}


def test_telemetry_is_queried_where_there_is_a_workspace(resources: Resources, other: Resources) -> None:
    assert "aps:" not in json.dumps(of_type(resources, "AWS::IAM::Role"))
    holders = {name for name, role in of_type(other, "AWS::IAM::Role").items() if "aps:" in json.dumps(role)}
    assert holders == {"ConfirmRole"}
    (statement,) = [
        s for s in statements(other["ConfirmRole"]["Properties"]) if s["Action"] == "aps:QueryMetrics"
    ]
    assert statement["Resource"] == "arn:aws:aps:us-east-1:123456789012:workspace/ws-0123456789"
