"""Least privilege: each role a row, each row a role, and what must not be there."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.allow import Allow
from infra.bundling import ROOT
from infra.config import read_settings
from infra.eks_access import CORDONERS, GROUPS, LABEL_REPLACERS, READERS
from infra.functions import FUNCTIONS, WORKFLOW_STEPS, deployed
from infra.logical_ids import camel
from infra.permissions import PERMISSIONS
from infra.places import Place
from infra.synth import read_context, synthesize
from lambdas.adapters import approvals
from lambdas.settings import VARIABLES
from tests.infra.reading import actions, as_list, of_type, statements

Resources = dict[str, Any]

CONFIG = read_settings(read_context({"bundle": False}))
NAMES = deployed(CONFIG)
ROWS = {name: PERMISSIONS[name] for name in NAMES}
LOG = {"logs:CreateLogStream", "logs:PutLogEvents"}
ONLY = {  # an action that no other function may have
    "sagemaker:BatchReplaceClusterNodes": {"replace"},
    "sagemaker:StartClusterHealthCheck": {"confirm"},
    "states:StartExecution": {"ingest"},
    "lambda:InvokeFunction": {"approval_api"},
    "states:SendTaskSuccess": {"approval_decide", "approval_api", "reconcile"},
}
VARIABLE_OF = {
    "INCIDENT_TABLE": Place.INCIDENTS,
    "APPROVAL_TABLE": Place.APPROVALS,
    "REGISTRATION_TABLE": Place.REGISTRATIONS,
    "QUARANTINE_TABLE": Place.QUARANTINE,
    "CONTROL_TABLE": Place.CONTROL,
    "EVENT_BUS_NAME": Place.BUS,
    "APPROVAL_TOPIC_ARN": Place.TOPIC,
    "STATE_MACHINE_ARN": Place.WORKFLOW,
    "RESUME_FUNCTION": Place.RESUME,
}


def role_of(resources: Resources, step: str) -> dict[str, Any]:
    return resources[f"{camel(step)}Role"]["Properties"]


def test_each_function_is_a_row_and_each_row_a_role(resources: Resources) -> None:
    roles = of_type(resources, "AWS::IAM::Role").keys()
    assert PERMISSIONS.keys() == FUNCTIONS.keys()
    assert roles == {f"{camel(step)}Role" for step in ROWS} | {"WorkflowRole"}


def test_nothing_is_granted_beside_the_roles(resources: Resources) -> None:
    """CDK likes to add policies and managed policies by itself."""
    assert not of_type(resources, "AWS::IAM::Policy")
    assert not [r for r in of_type(resources, "AWS::IAM::Role").values() if "ManagedPolicyArns" in r]


@pytest.mark.parametrize("step", ROWS)
def test_a_role_allows_its_row_and_its_own_log(resources: Resources, step: str) -> None:
    row = {action for allow in ROWS[step] for action in allow.qualified}
    assert actions(role_of(resources, step)) == row | LOG
    log = [s for s in statements(role_of(resources, step)) if set(as_list(s["Action"])) == LOG]
    assert [s["Resource"] for s in log] == [{"Fn::GetAtt": [f"{camel(step)}Log", "Arn"]}]


@pytest.mark.parametrize("action", ONLY)
def test_an_effect_belongs_to_one_function(resources: Resources, action: str) -> None:
    holders = {step for step in ROWS if action in actions(role_of(resources, step))}
    assert holders == ONLY[action] & set(NAMES)


def test_the_page_that_shows_can_only_read_and_never_the_token(resources: Resources) -> None:
    assert actions(role_of(resources, "approval_show")) - LOG == {"dynamodb:GetItem"}
    (read,) = [
        s for s in statements(role_of(resources, "approval_show")) if s["Action"] == "dynamodb:GetItem"
    ]
    attributes = read["Condition"]["ForAllValues:StringEquals"]["dynamodb:Attributes"]
    assert "task_token" not in attributes
    assert {"approval_id", *approvals._SHOWN} <= set(attributes)


@pytest.mark.parametrize(
    ("step", "services"),
    [
        ("ingest", {"sagemaker", "eks", "sns"}),
        ("register", {"states", "sns"}),
        ("locate", {"states", "sns", "eks"}),
        ("contain", {"states", "sns"}),
        ("resume", {"states", "sns"}),
        ("decide", {"sagemaker", "eks", "states", "sns", "sqs"}),
        ("request_approval", {"states", "sagemaker", "eks"}),
        ("approval_show", {"states", "sns", "sagemaker", "eks", "kms"}),
        ("approval_decide", {"sns", "sagemaker", "eks"}),
        ("replace", {"states", "sns"}),
        ("verify", {"states", "sns"}),
    ],
)
def test_services_that_a_step_must_not_reach(resources: Resources, step: str, services: set[str]) -> None:
    assert not {action for action in actions(role_of(resources, step)) if action.split(":")[0] in services}


def test_nobody_changes_the_cluster_but_by_the_two_named_calls(resources: Resources) -> None:
    allowed = set().union(*(actions(role_of(resources, step)) for step in ROWS))
    writes = {
        a
        for a in allowed
        if a.startswith("sagemaker:") and not a.startswith(("sagemaker:Describe", "sagemaker:List"))
    }
    assert writes == {"sagemaker:BatchReplaceClusterNodes", "sagemaker:StartClusterHealthCheck"}


def test_a_wildcard_stands_only_where_a_reason_stands(resources: Resources) -> None:
    wild = {
        (name, action)
        for name, role in of_type(resources, "AWS::IAM::Role").items()
        for statement in statements(role)
        if "*" in as_list(statement["Resource"])
        for action in as_list(statement["Action"])
        if name != "WorkflowRole"
    }
    reasoned = {
        (f"{camel(step)}Role", action)
        for step, row in ROWS.items()
        for allow in row
        if allow.reason
        for action in allow.qualified
    }
    assert wild == reasoned
    assert ("ApprovalDecideRole", "states:SendTaskSuccess") in wild
    every = [a for role in of_type(resources, "AWS::IAM::Role").values() for a in actions(role)]
    assert not [action for action in every if "*" in action]


def test_a_wildcard_without_a_reason_is_refused() -> None:
    with pytest.raises(AssertionError, match="gives no reason"):
        Allow("states", ("SendTaskSuccess",), at=(Place.EVERYTHING,))


@pytest.mark.parametrize("step", ROWS)
def test_a_function_may_use_what_it_is_told_of_and_nothing_else(step: str) -> None:
    places = {place for allow in ROWS[step] for place in allow.at}
    may = {Place.WORKFLOW if place is Place.EXECUTIONS else place for place in places}
    told = {VARIABLE_OF[name] for name in VARIABLES[step] if name in VARIABLE_OF}
    named_otherwise = {
        Place.CLUSTER, Place.EKS_CLUSTER, Place.EVERYTHING, Place.ALARM_QUEUE, Place.REGISTRATION_QUEUE,
        Place.CLUSTER_EVENT_QUEUE, Place.FUNCTION_DEAD_LETTERS,
    }  # fmt: skip
    assert may - named_otherwise == told


def test_who_uses_kubernetes_may_find_it() -> None:
    """The way to the endpoint leads over HyperPod's DescribeCluster, whatever the step does there."""
    steps = [step for step in ROWS if not step.startswith("approval_")]
    uses = {s for s in steps if "kubernetes" in {f.name for f in dataclasses.fields(needs_of(s))}}
    for step in steps:
        allowed = {action for allow in ROWS[step] for action in allow.qualified}
        assert ("eks:DescribeCluster" in allowed) == (step in uses), step
        assert "sagemaker:DescribeCluster" in allowed or step not in uses, step


def needs_of(step: str) -> Any:
    return importlib.import_module(f"lambdas.steps.{step}").Needs


def test_the_state_machine_calls_the_steps_and_nothing_else(resources: Resources) -> None:
    invoke = [
        s
        for s in statements(resources["WorkflowRole"]["Properties"])
        if s["Action"] == "lambda:InvokeFunction"
    ]
    called = {arn["Fn::GetAtt"][0] for s in invoke for arn in as_list(s["Resource"])}
    assert called == {f"{camel(step)}Function" for step in WORKFLOW_STEPS}


def test_training_pods_publish_and_read_the_quarantine_only(resources: Resources) -> None:
    document = resources["TrainingPodPolicy"]["Properties"]["PolicyDocument"]
    events, metrics, quarantine = document["Statement"]
    assert events["Action"] == "events:PutEvents"
    assert events["Resource"] == {"Fn::GetAtt": ["SdcBus", "Arn"]}
    allowed = events["Condition"]["ForAllValues:StringEquals"]
    assert as_list(allowed["events:source"]) == ["training.sdc"]
    assert "SDC Incident State Changed" not in json.dumps(events)  # that one is the pipeline's to say
    assert events["Condition"]["Null"] == {"events:source": "false", "events:detail-type": "false"}
    assert metrics["Action"] == "cloudwatch:PutMetricData"
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "TrainingSDC"}}
    assert quarantine["Action"] == "dynamodb:GetItem"
    assert quarantine["Resource"] == {"Fn::GetAtt": ["QuarantineTable", "Arn"]}


def test_access_entries_are_there_only_when_asked_for(resources: Resources, tmp_path: Path) -> None:
    assert not of_type(resources, "AWS::EKS::AccessEntry")
    made = json.loads(synthesize(tmp_path, {"eks_access_entries": "true"}).read_text())["Resources"]
    entries = of_type(made, "AWS::EKS::AccessEntry")
    groups = {entry["PrincipalArn"]["Fn::GetAtt"][0]: entry["KubernetesGroups"] for entry in entries.values()}
    assert groups == {f"{camel(step)}Role": [group] for step, group in GROUPS.items() if step in NAMES}


def test_who_talks_to_kubernetes_has_an_access_entry() -> None:
    logs_in = {s for s, row in PERMISSIONS.items() if any(Place.EKS_CLUSTER in allow.at for allow in row)}
    assert logs_in == GROUPS.keys()
    assert {step for step, group in GROUPS.items() if group == CORDONERS} == {"contain", "resume"}


def test_the_cluster_role_of_the_cordoner_is_the_least() -> None:
    manifest = list(yaml.safe_load_all((ROOT / "infra" / "eks_access" / "rbac.yaml").read_text()))
    rules = {
        item["metadata"]["name"]: {
            (resource, verb)
            for rule in item["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for item in manifest
        if item["kind"] == "ClusterRole"
    }
    assert rules["training-sdc-cordoner"] == {
        ("nodes", "get"), ("nodes", "patch"), ("pods", "list"), ("pods/eviction", "create"),
    }  # fmt: skip
    assert {verb for _, verb in rules["training-sdc-reader"]} == {"get", "list"}
    bound = {item["subjects"][0]["name"] for item in manifest if item["kind"] == "ClusterRoleBinding"}
    assert bound == {READERS, CORDONERS, LABEL_REPLACERS}
    assert rules["training-sdc-label-replacer"] == {("nodes", "get"), ("nodes", "patch")}
