"""What runs beside the state machine: reconciler, fire drill, signed route, and the other way to replace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from emulator.cloud import LocalCloud
from emulator.stack import Stack
from infra.eks_access import LABEL_REPLACERS
from infra.synth import synthesize
from lambdas.adapters.eks import HEALTH_LABEL, REPLACE_VALUE
from lambdas.domain.details_missing import METRICS, heard_of
from lambdas.domain.drill import DRILL_INSTANCE
from tests.workflow.conftest import CONTEXT
from tests.workflow.scenario import Scenario, fetch, until
from training_agent.contract import METRIC_NAMESPACE, MODE_SUBJECT, Check

CALLER = "arn:aws:sts::123456789012:assumed-role/Operators/alex"


def signed(stack: Stack, route: str, incident_id: str = "", **body: str) -> tuple[int, Any]:
    """A request whose signature API Gateway has checked: the front plays no IAM."""
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": route,
        "pathParameters": {"incident_id": incident_id},
        "requestContext": {"authorizer": {"iam": {"userArn": CALLER}}},
        "headers": {"content-type": "application/json"},
        "body": json.dumps(body),
        "isBase64Encoded": False,
    }
    outcome = stack.invoke("ApprovalApiFunction", event)
    assert not outcome.failed, outcome.json()
    answer = outcome.json()
    return answer["statusCode"], json.loads(answer["body"])


def reconcile(cloud: LocalCloud) -> dict[str, float]:
    outcome = cloud.invoke("ReconcileFunction", {})
    assert not outcome.failed, outcome.json()
    numbers: dict[str, float] = outcome.json()
    assert numbers["reconcile_failed_looks"] == 0
    return numbers


def test_a_signed_decision_ends_the_incident_and_names_the_caller(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    incident = scenario.incident_id()
    status, listed = signed(cloud.stack, "GET /incidents")
    assert status == 200 and incident in [i["incident_id"] for i in listed["incidents"]]
    assert signed(cloud.stack, "GET /incidents/{incident_id}", incident)[0] == 200
    route = "POST /incidents/{incident_id}/decision"
    said = {"decision": "keep", "reason": "looked at it", "question": f"{incident}-1", "action": "replace"}
    assert signed(cloud.stack, route, incident, **said)[0] == 200
    assert scenario.end() == "REJECTED_KEPT"


def test_an_open_breaker_is_closed_by_a_signed_request(cloud: LocalCloud) -> None:
    table, dynamodb = cloud.stack.table_name("ControlTable"), cloud.client("dynamodb")
    row = {"key": "breaker", "state": "OPEN", "reason": "over budget", "incident_id": "inc-1"}
    dynamodb.put_item(TableName=table, Item={k: {"S": v} for k, v in row.items()})
    try:
        assert reconcile(cloud)["breaker_open"] == 1
        assert signed(cloud.stack, "POST /breaker", reason="two bad nodes, both seen")[0] == 200
        assert reconcile(cloud)["breaker_open"] == 0
    finally:
        dynamodb.delete_item(TableName=table, Key={"key": {"S": "breaker"}})


def test_the_reconciler_delivers_a_decision_that_was_recorded_and_not_delivered(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    approval_id = json.loads(scenario.row()["document"])["approval_id"]
    values = {
        ":d": "DECIDED",
        ":a": "keep",
        ":r": "the function died here",
        ":t": "2026-11-30T00:00:00.000000Z",
    }
    cloud.client("dynamodb").update_item(
        TableName=cloud.stack.table_name("ApprovalTable"),
        Key={"approval_id": {"S": approval_id}},
        UpdateExpression="SET #s = :d, answer = :a, reason = :r, decided_at = :t, decided_by = :r",
        ExpressionAttributeNames={"#s": "state"},
        ExpressionAttributeValues={k: {"S": v} for k, v in values.items()},
    )
    assert reconcile(cloud)["decisions_delivered"] >= 1
    assert scenario.end() == "REJECTED_KEPT"


def test_the_reconciler_ends_an_incident_whose_execution_was_stopped(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    scenario.link()
    cloud.client("stepfunctions").stop_execution(executionArn=scenario.execution())
    cloud.stack.wait_for_execution(scenario.execution())
    assert reconcile(cloud)["incidents_abandoned"] >= 1
    assert scenario.row()["state"] == "HANDED_TO_HUMAN"
    assert scenario.cordoned(scenario.nodes[1])
    assert "its execution is ABORTED" in scenario.mail("needs a human").body


def test_a_question_about_a_node_that_hyperpod_has_replaced_is_closed(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    link = scenario.link()
    cloud.hyperpod.replace(scenario.instance(2))
    until(lambda: scenario.nodes[1] not in cloud.kubernetes.nodes or None, "the node to go")
    reconcile(cloud)
    assert scenario.end() == "WORLD_CHANGED"
    shown = fetch("GET", link)
    assert shown.status == 410 and "Nothing is asked any more" in shown.text
    assert scenario.replace_requests() == []


@pytest.mark.parametrize("alarm", ["fires", "was on already"])
def test_a_metric_whose_event_was_lost_goes_to_people_and_joins_it_when_it_comes_late(
    cloud: LocalCloud, scenario: Scenario, alarm: str
) -> None:
    """From CloudWatch's event on the default bus, by rule, queue and function; or from the metric itself."""
    check, opened = Check.WEIGHTS, len(cloud.mailbox)
    forget_events_of(cloud, check)
    executions = len(cloud.stack.executions())
    if alarm == "fires":
        cloud.client("events").put_events(Entries=[metric_alarm(cloud.stack, "DivergentReplicas")])
    else:
        put_six_minutes_ago(cloud, check, scenario.job.name)
        reconcile(cloud)
    mail = until(
        lambda: next((m for m in cloud.mailbox[opened:] if "details missing" in m.subject), None), "the mail"
    )
    assert ("Metric alarm: DivergentReplicas" in mail.body) is (alarm == "fires")
    assert scenario.job.name in mail.body
    (found,) = (
        i for i in signed(cloud.stack, "GET /incidents")[1]["incidents"] if i["state"] == "DETAILS_MISSING"
    )
    reconcile(cloud)
    assert len(cloud.stack.executions()) == executions

    scenario.raise_alarm(scenario.diverged(), check=check)
    scenario.link()
    numbers = reconcile(cloud)
    assert numbers["incidents_abandoned"] == 0
    status, ended = signed(cloud.stack, "GET /incidents/{incident_id}", found["incident_id"])
    assert (status, ended["incident"]["state"]) == (200, "JOINED")
    scenario.answer("keep")
    assert scenario.end() == "REJECTED_KEPT"


def metric_alarm(stack: Stack, name: str) -> dict[str, Any]:
    """CloudWatch's entry on the default bus, as AWS writes it."""
    properties = stack.template.resources[name]["Properties"]
    metric = {"name": properties["MetricName"], "namespace": properties["Namespace"]}
    detail = {
        "alarmName": name,
        "state": {"value": "ALARM", "reason": "Threshold Crossed: 1 datapoint [1.0]."},
        "configuration": {"metrics": [{"metricStat": {"metric": metric, "stat": "Maximum"}}]},
    }
    return {
        "Source": "aws.cloudwatch",
        "DetailType": "CloudWatch Alarm State Change",
        "Resources": [stack.template.arn_of(name)],
        "Detail": json.dumps(detail),
    }


def put_six_minutes_ago(cloud: LocalCloud, check: Check, job: str) -> None:
    """What the agent of `job` puts on an alarm; its event is lost."""
    of_cluster = [{"Name": "Cluster", "Value": "demo"}]
    data = {
        "MetricName": METRICS[check].value,
        "Timestamp": datetime.now(timezone.utc) - timedelta(minutes=6),
        "Value": 1.0,
    }
    sets = (of_cluster, [*of_cluster, {"Name": "Job", "Value": job}])
    cloud.client("cloudwatch").put_metric_data(
        Namespace=METRIC_NAMESPACE, MetricData=[{**data, "Dimensions": dimensions} for dimensions in sets]
    )


def forget_events_of(cloud: LocalCloud, check: Check) -> None:
    """Other scenarios of these minutes have alarmed as well."""
    table, dynamodb = cloud.stack.table_name("IncidentTable"), cloud.client("dynamodb")
    subject = {":pk": {"S": f"history#{heard_of(check)}"}}
    for item in dynamodb.query(
        TableName=table, KeyConditionExpression="pk = :pk", ExpressionAttributeValues=subject
    )["Items"]:
        dynamodb.delete_item(TableName=table, Key={"pk": item["pk"], "sk": item["sk"]})


def test_the_mode_that_agents_read_follows_the_reconciler(cloud: LocalCloud) -> None:
    table, dynamodb = cloud.stack.table_name("QuarantineTable"), cloud.client("dynamodb")
    key = {"subject": {"S": MODE_SUBJECT}}
    dynamodb.delete_item(TableName=table, Key=key)
    reconcile(cloud)
    assert dynamodb.get_item(TableName=table, Key=key)["Item"]["mode"] == {"S": "replace"}


def test_the_fire_drill_asks_and_replaces_nobody(cloud: LocalCloud) -> None:
    before, requests = len(cloud.mailbox), len(cloud.hyperpod.requests)
    outcome = cloud.invoke("DrillFunction", {})
    assert not outcome.failed, outcome.json()
    mail = until(
        lambda: next((m for m in cloud.mailbox[before:] if "drill" in (m.subject + m.body).lower()), None),
        "a mail",
    )
    link = re.search(r"http://\S+/review/\S+", mail.body)
    assert link is not None
    form = {"decision": "approve", "typed": DRILL_INSTANCE[-6:], "reason": "a drill is answered"}
    assert fetch("POST", link.group(0), form).status == 200
    until(
        lambda: (
            not [i for i in signed(cloud.stack, "GET /incidents")[1]["incidents"] if i["synthetic"]] or None
        ),
        "the drill's end",
    )
    changes = {r.operation for r in cloud.hyperpod.requests[requests:]}
    assert changes <= {"DescribeCluster", "ListClusterNodes", "DescribeClusterNode"}


@pytest.fixture
def by_label(cloud: LocalCloud, tmp_path: Path) -> Iterator[Stack]:
    """A deployment that replaces by HyperPod's label, under the recovery that acts on it."""
    template = synthesize(tmp_path / "assembly", {**CONTEXT, "replacement_method": "label"})
    before, cloud.hyperpod.node_recovery = cloud.hyperpod.node_recovery, "Automatic"
    with cloud.another_stack(template, prefix="label-") as stack:
        yield stack
    cloud.hyperpod.node_recovery = before


def test_by_label_an_identity_of_its_own_sets_that_label_on_the_approved_node(
    cloud: LocalCloud, by_label: Stack
) -> None:
    scenario = Scenario(cloud, by_label)
    scenario.raise_alarm(scenario.culprit())
    scenario.answer("approve")

    def labelled() -> bool | None:
        labels = cloud.kubernetes.nodes[scenario.nodes[1]]["metadata"]["labels"]
        return True if labels.get(HEALTH_LABEL) == REPLACE_VALUE else None

    until(labelled, "the label")
    (patch,) = (r for r in cloud.kubernetes.requests if r.method == "PATCH" and LABEL_REPLACERS in r.groups)
    assert patch.path.endswith(scenario.nodes[1])
    assert scenario.replace_requests() == []
