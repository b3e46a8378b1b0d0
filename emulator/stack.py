"""One deployed template: its resources in moto, its functions, queues, page and mail. In: the template.
Out: `Stack`.

A cloud has one stack; tests add others to the same account, under a prefix, to take a part out and see it
break.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .http_front import HttpFront
from .iam import Request, allowing
from .lambda_runtime import LambdaRuntime, Outcome
from .names import arn
from .plan import Overrides, Plan, QueueMapping, definition_of, read
from .queue_pump import QueuePump, redrive_attributes
from .template import Template, TemplateError
from .timers import Timers

Client = Callable[[str], Any]
FINISHED = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")


class Stack:
    """A template, running.

    Args:
        environment: what the Lambda service adds to each function's variables.
        client: makes boto3 clients of the local cloud.
        folder: for the functions' logs.
        prefix: before all physical names; "" for the cloud's own stack.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        endpoint_url: str,
        client: Client,
        timers: Timers,
        folder: Path,
        overrides: Overrides,
        prefix: str = "",
    ) -> None:
        self._client = client
        self._pumps: list[QueuePump] = []
        self.runtime: LambdaRuntime | None = None
        self.front = HttpFront(self.invoke)
        try:
            self.template = Template(source, endpoint_url=endpoint_url, api_url=self.front.url, prefix=prefix)
            self.plan = read(self.template, overrides)
            self.front.routes = self.plan.routes
            self.runtime = LambdaRuntime(self.plan.functions, environment, folder)
            create(self.plan, client)
            for mapping in self.plan.mappings:
                _require_polling(mapping, self.plan)
                properties = self.plan.queues[mapping.queue]
                visibility = float(properties.get("VisibilityTimeout", 30))
                pump = QueuePump(mapping, client("sqs"), self.invoke, timers, visibility_seconds=visibility)
                self._pumps.append(pump)
        except BaseException:
            self.close()
            raise

    @property
    def event_bus_name(self) -> str:
        """Name of the dedicated bus."""
        return self._only(self.plan.buses, "event bus")

    @property
    def state_machine_arn(self) -> str:
        """ARN of the workflow."""
        return arn("states", f"stateMachine:{self._only(list(self.plan.machines), 'state machine')}")

    @property
    def review_url(self) -> str:
        """Base of the review page."""
        return self.front.url

    def outputs(self) -> dict[str, str]:
        """The stack's outputs, as `cdk deploy --outputs-file` writes them."""
        return self.template.outputs()

    def table_name(self, logical_id: str) -> str:
        """Physical name of a table."""
        return self.template.name_of(logical_id)

    def invoke(self, name_or_arn: str, event: Any) -> Outcome:
        """Run one of the functions and wait."""
        if self.runtime is None:
            raise RuntimeError("the stack is not up yet")
        return self.runtime.invoke(name_or_arn, event)

    def executions(self) -> list[dict[str, Any]]:
        """DescribeExecution of every execution, oldest first."""
        states = self._client("stepfunctions")
        found = states.list_executions(stateMachineArn=self.state_machine_arn, maxResults=1000)["executions"]
        found.sort(key=lambda e: e["startDate"])
        described = (states.describe_execution(executionArn=e["executionArn"]) for e in found)
        return [{k: v for k, v in d.items() if k != "ResponseMetadata"} for d in described]

    def history(self, execution_arn: str) -> list[dict[str, Any]]:
        """GetExecutionHistory's events, in order."""
        history = self._client("stepfunctions").get_execution_history(executionArn=execution_arn)
        return list(history["events"])

    def states_entered(self, execution_arn: str) -> list[str]:
        """Names of the states that an execution walked through."""
        details = (e.get("stateEnteredEventDetails") for e in self.history(execution_arn))
        return [d["name"] for d in details if d]

    def wait_for_execution(self, execution_arn: str, timeout: float = 30.0) -> dict[str, Any]:
        """DescribeExecution of a finished execution.

        Raises:
            TimeoutError: it still runs; the text names the states that it entered.
        """
        end = time.monotonic() + timeout
        while True:
            found = self._client("stepfunctions").describe_execution(executionArn=execution_arn)
            if found["status"] in FINISHED:
                return dict(found)
            if time.monotonic() > end:
                walked = " -> ".join(self.states_entered(execution_arn))
                raise TimeoutError(f"{execution_arn} runs after {timeout:g} s: {walked}")
            time.sleep(0.03)

    def close(self) -> None:
        """Stop executions, pumps, page and processes; the resources stay in moto until the cloud closes."""
        for pump in self._pumps:
            pump.close()
        self._stop_executions()
        self.front.close()
        if self.runtime is not None:
            self.runtime.close()

    def _stop_executions(self) -> None:
        if self.runtime is None or not self.plan.machines:
            return
        states = self._client("stepfunctions")
        for execution in self.executions():
            if execution["status"] == "RUNNING":
                states.stop_execution(executionArn=execution["executionArn"], error="LocalCloud.Closed")
        end = time.monotonic() + 5
        while time.monotonic() < end and any(e["status"] == "RUNNING" for e in self.executions()):
            time.sleep(0.02)

    @staticmethod
    def _only(names: list[str], what: str) -> str:
        if len(names) != 1:
            raise TemplateError(f"the template has {len(names)} of: {what}; the local cloud expects one")
        return names[0]


def _require_polling(mapping: QueueMapping, plan: Plan) -> None:
    """The function's role lets Lambda poll for it; CreateEventSourceMapping asks, so the deployment fails."""
    function = plan.functions[mapping.function]
    if not function.statements:
        return  # a test's own function
    for action in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes"):
        if allowing(function.statements, Request(f"sqs:{action}", arn("sqs", mapping.queue))) is None:
            raise TemplateError(
                f"{function.logical_id}: its role does not have permissions to call {action} on SQS, "
                f"for {mapping.queue}"
            )


def create(plan: Plan, client: Client) -> None:
    """Create what moto holds, in an order in which each finds what it refers to."""
    for name, p in plan.tables.items():
        _create_table(client("dynamodb"), name, p)
    for name, p in sorted(plan.queues.items(), key=lambda item: "RedrivePolicy" in item[1]):
        client("sqs").create_queue(QueueName=name, Attributes=redrive_attributes(p))
    for topic in plan.topics:
        client("sns").create_topic(Name=topic)
    for p in plan.subscriptions:
        _subscribe(client("sns"), p)
    for bus in plan.buses:
        client("events").create_event_bus(Name=bus)
    for name, p in plan.machines.items():
        client("stepfunctions").create_state_machine(
            name=name,
            definition=definition_of(p),
            roleArn=p["RoleArn"],
            type=p.get("StateMachineType", "STANDARD"),
        )
    for name, p in plan.rules.items():
        _create_rule(client("events"), name, p)


def _create_table(dynamodb: Any, name: str, p: dict[str, Any]) -> None:
    indexes = {k: p[k] for k in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes") if k in p}
    dynamodb.create_table(
        TableName=name,
        KeySchema=p["KeySchema"],
        AttributeDefinitions=p["AttributeDefinitions"],
        BillingMode=p.get("BillingMode", "PAY_PER_REQUEST"),
        **indexes,
    )
    if "TimeToLiveSpecification" in p:
        dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=p["TimeToLiveSpecification"])


def _subscribe(sns: Any, p: dict[str, Any]) -> None:
    attributes = {}
    if "FilterPolicy" in p:
        attributes["FilterPolicy"] = json.dumps(p["FilterPolicy"])
    if "FilterPolicyScope" in p:
        attributes["FilterPolicyScope"] = p["FilterPolicyScope"]
    sns.subscribe(
        TopicArn=p["TopicArn"], Protocol=p["Protocol"], Endpoint=p["Endpoint"], Attributes=attributes
    )


def _create_rule(events: Any, name: str, p: dict[str, Any]) -> None:
    if "ScheduleExpression" in p and "EventPattern" not in p:
        return  # time-driven rules never fire in the local cloud: tests invoke their functions
    bus = str(p.get("EventBusName", "default")).rsplit("/", 1)[-1]
    events.put_rule(
        Name=name,
        EventBusName=bus,
        EventPattern=json.dumps(p["EventPattern"]),
        State=p.get("State", "ENABLED"),
    )
    if p.get("Targets"):
        events.put_targets(Rule=name, EventBusName=bus, Targets=p["Targets"])
