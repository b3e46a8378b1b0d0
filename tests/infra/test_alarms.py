"""Every way to lose an incident has an alarm; every alarm an action, a meaning, a place in the runbook."""

from __future__ import annotations

from typing import Any

import pytest

from infra.bundling import ROOT
from lambdas.steps.abandoned import NEVER_STARTED
from tests.infra.conftest import OWN_TOPIC
from tests.infra.reading import of_type

Resources = dict[str, Any]


def alarms_of(resources: Resources) -> dict[str, Any]:
    return of_type(resources, "AWS::CloudWatch::Alarm")


def test_each_alarm_has_an_action_and_says_what_it_means(resources: Resources) -> None:
    alarms = alarms_of(resources)
    assert alarms
    for name, alarm in alarms.items():
        assert alarm["AlarmActions"] == [{"Ref": "OperatorTopic"}], name
        assert alarm["AlarmDescription"].endswith(f"docs/operate.md, {name}")


def test_each_alarm_stands_in_the_runbook(resources: Resources) -> None:
    text = (ROOT / "docs" / "operate.md").read_text()
    assert not [name for name in alarms_of(resources) if f"`{name}`" not in text]


def test_the_agent_s_metrics_are_watched_by_cluster(resources: Resources) -> None:
    """A CloudWatch alarm watches one exact set of dimensions; jobs come and go."""
    watched = {}
    for name in ("NonFiniteGradients", "ReplayMismatch", "DivergentReplicas", "ReductionMismatch"):
        alarm = alarms_of(resources)[name]
        assert alarm["Dimensions"] == [{"Name": "Cluster", "Value": "demo"}]
        assert (alarm["Namespace"], alarm["Threshold"], alarm["Statistic"]) == ("TrainingSDC", 0, "Maximum")
        watched[name] = alarm["MetricName"]
    assert watched == {
        "NonFiniteGradients": "sdc_nonfinite_grad",
        "ReplayMismatch": "sdc_replay_mismatch",
        "DivergentReplicas": "sdc_divergent_tensors",
        "ReductionMismatch": "sdc_reduction_mismatch",
    }


@pytest.mark.parametrize("name", ["ExecutionFailed", "ExecutionTimedOut", "ExecutionAborted"])
def test_an_execution_that_ends_badly_alarms(resources: Resources, name: str) -> None:
    alarm = alarms_of(resources)[name]
    assert alarm["Namespace"] == "AWS/States"
    assert alarm["Dimensions"] == [{"Name": "StateMachineArn", "Value": {"Ref": "IncidentWorkflow"}}]


@pytest.mark.parametrize(
    ("name", "metric", "threshold"),
    [
        ("JobsWithoutHeartbeat", "jobs_without_heartbeat", 0),
        ("OldestOpenIncident", "oldest_open_incident_seconds", 86400),
        ("BreakerOpen", "breaker_open", 0),
        ("IncidentsWithoutProgress", "incidents_without_progress", 0),
        ("UnknownOutcomes", "unknown_outcomes", 0),
        ("CordonsWithoutIncident", "cordons_without_incident", 0),
        ("AlarmsWithoutIncident", "alarms_without_incident", 0),
        ("ReconcilerLooksFailed", "reconcile_failed_looks", 0),
        ("NoConfirmedApprover", "approvers_without_confirmation", 0),
        ("NobodyWasTold", "notices_to_nobody", 0),
    ],
)
def test_what_only_the_pipeline_itself_sees_alarms(
    resources: Resources, name: str, metric: str, threshold: int
) -> None:
    alarm = alarms_of(resources)[name]
    assert (alarm["Namespace"], alarm["MetricName"], alarm["Threshold"]) == ("TrainingSDC", metric, threshold)
    assert alarm["Dimensions"] == [{"Name": "Cluster", "Value": "demo"}]
    assert alarm["TreatMissingData"] == "notBreaching"


def test_an_incident_is_given_up_only_after_the_queue_has_given_up(resources: Resources) -> None:
    queue = resources["AlarmQueue"]["Properties"]
    deliveries = queue["RedrivePolicy"]["maxReceiveCount"] * queue["VisibilityTimeout"]
    assert NEVER_STARTED.total_seconds() > deliveries


def test_a_silent_reconciler_alarms(resources: Resources) -> None:
    alarm = alarms_of(resources)["ReconcilerSilent"]
    assert (alarm["MetricName"], alarm["TreatMissingData"]) == ("reconcile_done", "breaching")
    assert alarm["ComparisonOperator"] == "LessThanOrEqualToThreshold"


def test_rejected_events_alarm(resources: Resources) -> None:
    alarm = alarms_of(resources)["AlarmsRejected"]
    assert (alarm["Namespace"], alarm["MetricName"], alarm["Threshold"]) == (
        "TrainingSDC",
        "AlarmsRejected",
        0,
    )
    assert alarm["Dimensions"] == [
        {"Name": "Cluster", "Value": "demo"},
        {"Name": "service", "Value": "ingest"},
    ]


def test_each_dead_letter_queue_is_watched(resources: Resources) -> None:
    queues = {name for name in of_type(resources, "AWS::SQS::Queue") if name.endswith("DeadLetters")}
    watched = {
        alarm["Dimensions"][0]["Value"]["Fn::GetAtt"][0]
        for alarm in alarms_of(resources).values()
        if alarm["MetricName"] == "ApproximateNumberOfMessagesVisible"
    }
    assert watched == queues


def test_the_operator_s_own_topic_takes_the_place_of_ours(other: Resources) -> None:
    assert "OperatorTopic" not in other
    assert all(alarm["AlarmActions"] == [OWN_TOPIC] for alarm in alarms_of(other).values())


def test_a_chat_channel_listens_and_may_read_nothing(other: Resources) -> None:
    (chat,) = of_type(other, "AWS::Chatbot::SlackChannelConfiguration").values()
    assert chat["SnsTopicArns"] == [OWN_TOPIC]
    assert "Policies" not in other["ChatRole"]["Properties"]
    assert "ManagedPolicyArns" not in other["ChatRole"]["Properties"]
