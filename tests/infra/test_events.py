"""The bus and the rules on the account's default bus."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.cluster_events import HYPERPOD
from tests.infra.reading import of_type

Resources = dict[str, Any]


def test_only_this_account_puts_on_the_bus_and_only_in_our_name(resources: Resources) -> None:
    policies = of_type(resources, "AWS::Events::EventBusPolicy")
    by_sid = {policy["StatementId"]: policy["Statement"] for policy in policies.values()}
    assert {s["Effect"] for s in by_sid.values()} == {"Deny"}
    assert {json.dumps(s["Resource"]) for s in by_sid.values()} == {'{"Fn::GetAtt": ["SdcBus", "Arn"]}'}
    assert by_sid["OnlyThisAccount"]["Condition"] == {
        "StringNotEquals": {"aws:PrincipalAccount": "123456789012"}
    }
    assert by_sid["OnlyOurSource"]["Condition"] == {
        "ForAnyValue:StringNotEquals": {"events:source": ["training.sdc"]}
    }


def test_what_was_said_on_the_bus_is_archived(resources: Resources) -> None:
    archive = resources["SdcArchive"]["Properties"]
    assert archive["SourceArn"] == {"Fn::GetAtt": ["SdcBus", "Arn"]}
    assert archive["RetentionDays"] == 30


@pytest.mark.parametrize("name", ["HyperPodRule", "AgentAlarmRule", "ExecutionRule"])
def test_others_speak_on_the_default_bus(resources: Resources, name: str) -> None:
    rule = resources[name]["Properties"]
    assert "EventBusName" not in rule  # HyperPod and CloudWatch never put on a custom bus
    (target,) = rule["Targets"]
    assert target["Arn"] == {"Fn::GetAtt": ["ClusterEventQueue", "Arn"]}
    assert target["DeadLetterConfig"] == {"Arn": {"Fn::GetAtt": ["ClusterEventDeadLetters", "Arn"]}}


def test_hyperpod_is_heard_about_this_cluster_only(resources: Resources) -> None:
    pattern = resources["HyperPodRule"]["Properties"]["EventPattern"]
    assert pattern["source"] == ["aws.sagemaker"]
    assert pattern["resources"] == ["arn:aws:sagemaker:us-east-1:123456789012:cluster/demo00000000"]
    assert set(pattern["detail-type"]) == set(HYPERPOD)


def test_the_three_alarms_of_the_agent_are_heard_when_they_fire(resources: Resources) -> None:
    pattern = resources["AgentAlarmRule"]["Properties"]["EventPattern"]
    heard = {arn["Fn::GetAtt"][0] for arn in pattern["resources"]}
    assert heard == {"NonFiniteGradients", "ReplayMismatch", "DivergentReplicas", "ReductionMismatch"}
    assert pattern["detail"] == {"state": {"value": ["ALARM"]}}


def test_an_execution_that_ended_badly_is_heard_of(resources: Resources) -> None:
    detail = resources["ExecutionRule"]["Properties"]["EventPattern"]["detail"]
    assert detail == {
        "stateMachineArn": [{"Ref": "IncidentWorkflow"}],
        "status": ["FAILED", "TIMED_OUT", "ABORTED"],
    }


def test_the_agent_s_own_event_has_five_minutes(resources: Resources) -> None:
    assert resources["ClusterEventQueue"]["Properties"]["DelaySeconds"] == 300
