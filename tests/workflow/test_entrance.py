"""How events get in: what is refused leaves an audit row; what the template lacks does not work here
either."""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from emulator.cloud import LocalCloud
from emulator.stack import Stack
from emulator.template import TemplateError
from tests.workflow.scenario import Scenario, fetch, until
from training_agent.contract import Alarm, DetailType, encode, to_plain

Template = dict[str, Any]
QUIET_SECONDS = 0.7  # an event that gets through has started its execution by then, workers warm


def _old(alarm: Alarm) -> str:
    day = datetime.now(timezone.utc) - timedelta(days=1)
    return encode(dataclasses.replace(alarm, time=day.strftime("%Y-%m-%dT%H:%M:%SZ")))


def _without_step(alarm: Alarm) -> str:
    return json.dumps({k: v for k, v in to_plain(alarm).items() if k != "step"})


REFUSED: dict[str, tuple[Callable[[Alarm], str], str]] = {
    "a field is missing": (_without_step, "step"),
    "another major version": (lambda a: json.dumps(to_plain(a) | {"schema_version": "2.0"}), "2.0"),
    "another cluster": (lambda a: encode(dataclasses.replace(a, cluster="elsewhere")), "elsewhere"),
    "a day old": (_old, "old"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_malformed_event_leaves_an_audit_row_and_no_execution(
    cloud: LocalCloud, scenario: Scenario, kind: str
) -> None:
    spoil, word = REFUSED[kind]
    rejected, executions = len(_rejected(cloud)), len(cloud.executions())
    scenario.put(DetailType.ALARM, spoil(scenario.alarm(scenario.culprit())))
    rows = until(lambda: _rejected(cloud)[rejected:] or None, "an audit row")
    assert word in rows[0]["reason"]["S"]
    assert len(cloud.executions()) == executions
    # the job of a late alarm still holds: people are told on the bus; forged text stays off it
    if kind == "a day old":
        until(lambda: scenario.events() or None, "an event about the rejection")
    told = [(e["state"], e["incident_id"]) for e in scenario.events()]
    assert told == ([("REJECTED_EVENT", None)] if kind == "a day old" else [])


@pytest.fixture(scope="module", autouse=True)
def ingest_is_warm(cloud: LocalCloud) -> None:
    """So that QUIET_SECONDS means something."""
    cloud.runtime.warm_up("IngestFunction")


def test_without_the_rule_nothing_starts(cloud: LocalCloud, template: Template) -> None:
    def edit(resources: Template) -> None:
        del resources["AlarmRule"]

    with cloud.another_stack(_edited(template, edit), prefix="no-rule-") as stack:
        _raise(cloud, stack)
        assert _waiting(cloud, stack, "AlarmQueue") == 0
        _assert_nothing_starts(stack)


def test_without_the_rules_target_nothing_starts(cloud: LocalCloud, template: Template) -> None:
    def edit(resources: Template) -> None:
        del resources["AlarmRule"]["Properties"]["Targets"]

    with cloud.another_stack(_edited(template, edit), prefix="no-target-") as stack:
        _raise(cloud, stack)
        assert _waiting(cloud, stack, "AlarmQueue") == 0
        _assert_nothing_starts(stack)


def test_with_the_rule_disabled_nothing_starts(cloud: LocalCloud, template: Template) -> None:
    def edit(resources: Template) -> None:
        resources["AlarmRule"]["Properties"]["State"] = "DISABLED"

    with cloud.another_stack(_edited(template, edit), prefix="disabled-") as stack:
        _raise(cloud, stack)
        assert _waiting(cloud, stack, "AlarmQueue") == 0


def test_without_the_queue_mapping_the_alarm_stays_in_the_queue(
    cloud: LocalCloud, template: Template
) -> None:
    def edit(resources: Template) -> None:
        del resources["AlarmQueueMapping"]

    with cloud.another_stack(_edited(template, edit), prefix="no-mapping-") as stack:
        _raise(cloud, stack)
        _assert_nothing_starts(stack)
        assert _waiting(cloud, stack, "AlarmQueue") == 1


def test_without_the_permission_to_poll_the_template_does_not_load(
    cloud: LocalCloud, template: Template
) -> None:
    """CreateEventSourceMapping asks for it, so that CloudFormation would fail as well."""

    def edit(resources: Template) -> None:
        _take_away(resources["IngestRole"], "sqs:ReceiveMessage")

    with (
        pytest.raises(TemplateError, match="permissions to call ReceiveMessage on SQS"),
        cloud.another_stack(_edited(template, edit), prefix="no-poll-"),
    ):
        pass


def test_without_the_permission_to_start_executions_nothing_starts(
    cloud: LocalCloud, template: Template
) -> None:
    def edit(resources: Template) -> None:
        _take_away(resources["IngestRole"], "states:StartExecution")

    with cloud.another_stack(_edited(template, edit), prefix="no-start-") as stack:
        _raise(cloud, stack)
        until(lambda: _waiting(cloud, stack, "AlarmDeadLetters") or None, "the dead letter")
        assert stack.executions() == []


def test_without_the_permission_to_invoke_the_page_answers_500(cloud: LocalCloud, template: Template) -> None:
    def edit(resources: Template) -> None:
        for name in [n for n, r in resources.items() if r["Type"] == "AWS::Lambda::Permission"]:
            del resources[name]

    with cloud.another_stack(_edited(template, edit), prefix="no-invoke-") as stack:
        assert fetch("GET", f"{stack.review_url}/review/{'0' * 64}").status == 500
    assert fetch("GET", f"{cloud.review_url}/review/{'0' * 64}").status == 404


def test_without_a_variable_the_function_fails_and_nothing_starts(
    cloud: LocalCloud, template: Template
) -> None:
    def edit(resources: Template) -> None:
        del resources["IngestFunction"]["Properties"]["Environment"]["Variables"]["STATE_MACHINE_ARN"]

    with cloud.another_stack(_edited(template, edit), prefix="no-variable-") as stack:
        assert stack.runtime is not None
        failures = stack.runtime.failures
        _raise(cloud, stack)
        function, error = until(lambda: failures[0] if failures else None, "the failure of ingest")
        assert function == "IngestFunction"
        assert "STATE_MACHINE_ARN".lower() in error["errorMessage"].lower()
        assert stack.executions() == []


def test_without_a_table_the_template_does_not_load(cloud: LocalCloud, template: Template) -> None:
    def edit(resources: Template) -> None:
        del resources["IncidentTable"]

    with (
        pytest.raises(TemplateError, match="IncidentTable"),
        cloud.another_stack(_edited(template, edit), prefix="no-table-"),
    ):
        pass


def test_an_unbroken_second_stack_does_start(cloud: LocalCloud, template: Template) -> None:
    """The control of the tests above."""
    with cloud.another_stack(template, prefix="whole-") as stack:
        _raise(cloud, stack)
        assert len(until(lambda: stack.executions() or None, "an execution")) == 1


def _take_away(role: Template, action: str) -> None:
    for policy in role["Properties"]["Policies"]:
        for statement in policy["PolicyDocument"]["Statement"]:
            allowed = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            statement["Action"] = [a for a in allowed if a != action]


def _edited(template: Template, edit: Callable[[Template], None]) -> Template:
    edited = copy.deepcopy(template)
    edit(edited["Resources"])
    return edited


def _raise(cloud: LocalCloud, stack: Stack) -> None:
    scenario = Scenario(cloud, stack)
    before = len(cloud.bus_events)
    scenario.put(DetailType.ALARM, encode(scenario.alarm(scenario.culprit())))
    assert any(e.bus == stack.event_bus_name for e in cloud.bus_events[before:])


def _assert_nothing_starts(stack: Stack) -> None:
    time.sleep(QUIET_SECONDS)
    assert stack.executions() == []


def _waiting(cloud: LocalCloud, stack: Stack, queue: str) -> int:
    sqs = cloud.client("sqs")
    url = sqs.get_queue_url(QueueName=stack.template.name_of(queue))["QueueUrl"]
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(attributes[n]) for n in names)


def _rejected(cloud: LocalCloud) -> list[dict[str, Any]]:
    answer = cloud.client("dynamodb").scan(
        TableName=cloud.stack.table_name("IncidentTable"),
        FilterExpression="begins_with(pk, :p)",
        ExpressionAttributeValues={":p": {"S": "rejected#"}},
    )
    items: list[dict[str, Any]] = sorted(answer["Items"], key=lambda i: str(i["sk"]["S"]))
    return items
