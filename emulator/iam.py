"""What IAM would decide about a call. In: an operation with its parameters, as boto3 is given them, and the
statements of the caller's role. Out: the requests that IAM sees, and which statement allows each.

Only what this project's roles use is judged: Allow statements, exact actions, resources with `*`, and four
condition operators; anything else is an error, never a yes. `make validate` puts the same requests before a
simulator that is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .names import arn, cluster_id_of

Statement = Mapping[str, Any]
Values = tuple[str, ...]
PREFIXES = {"monitoring": "cloudwatch"}  # signing name -> prefix of IAM actions, where they differ
ACTIONS = {"lambda:Invoke": "lambda:InvokeFunction"}  # operation -> action, where they differ
WHOLE_ACCOUNT = {  # operations without a resource level
    "cloudwatch:PutMetricData", "cloudwatch:GetMetricData", "states:SendTaskSuccess",
}  # fmt: skip
RESOURCE: dict[str, tuple[str, Callable[[str], str]]] = {  # service -> (parameter, its ARN)
    "dynamodb": ("TableName", lambda name: arn("dynamodb", f"table/{name}")),
    "lambda": ("FunctionName", lambda name: arn("lambda", f"function:{name}")),
    "eks": ("name", lambda name: arn("eks", f"cluster/{name}")),
    "sagemaker": ("ClusterName", lambda name: arn("sagemaker", f"cluster/{cluster_id_of(name)}")),
    "sns": ("TopicArn", str),
    "sqs": ("QueueUrl", lambda url: arn("sqs", url.rsplit("/", 1)[-1])),
}
STATES = {"StartExecution": "stateMachineArn", "DescribeExecution": "executionArn"}


@dataclass(frozen=True, slots=True)
class Request:
    """One question to IAM."""

    action: str  # service:Operation
    resource: str  # ARN, or * where there is no resource level
    context: Mapping[str, Values] = field(default_factory=dict)  # condition key -> values

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells kinds of requests apart: names of executions and rows do not."""
        shown = {k: v for k, v in self.context.items() if k != "dynamodb:LeadingKeys" or v == ("breaker",)}
        return (self.action, self.resource.partition(":execution:")[0], tuple(sorted(shown.items())))

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"action": self.action, "resource": self.resource, "context": dict(self.context)}


def requests_of(signing_name: str, operation: str, parameters: Mapping[str, Any]) -> Iterator[Request]:
    """What a call asks IAM for: as a rule one request; one for each entry of a batch."""
    service = PREFIXES.get(signing_name, signing_name)
    action = ACTIONS.get(f"{service}:{operation}", f"{service}:{operation}")
    if operation == "TransactWriteItems":
        for entry in parameters["TransactItems"]:
            (kind, inner), *_ = entry.items()
            name = "ConditionCheckItem" if kind == "ConditionCheck" else f"{kind}Item"
            yield from requests_of(signing_name, name, inner)
    elif action == "events:PutEvents":
        for entry in parameters["Entries"]:
            said = {"events:source": (entry["Source"],), "events:detail-type": (entry["DetailType"],)}
            yield Request(action, arn("events", f"event-bus/{entry.get('EventBusName', 'default')}"), said)
    elif action in WHOLE_ACCOUNT:
        space = parameters.get("Namespace")
        yield Request(action, "*", {"cloudwatch:namespace": (space,)} if space else {})
    elif service == "states":
        yield Request(action, parameters[STATES[operation]])
    elif service in RESOURCE:
        parameter, arn_of = RESOURCE[service]
        yield Request(action, arn_of(parameters[parameter]), _asked(parameters))
    else:
        raise NotImplementedError(f"emulator/iam.py does not know what {action} asks IAM for: add it there")


def allowing(statements: Sequence[Statement], request: Request) -> int | None:
    """Index of the first statement that allows the request; None: denied."""
    return next((i for i, s in enumerate(statements) if _allows(s, request)), None)


def _allows(statement: Statement, request: Request) -> bool:
    if statement["Effect"] != "Allow":
        raise NotImplementedError(f"a statement of effect {statement['Effect']} is not judged here")
    return (
        request.action in _listed(statement["Action"])
        and any(fnmatchcase(request.resource, pattern) for pattern in _listed(statement["Resource"]))
        and all(
            _holds(operator, request.context.get(key, ()), _listed(wanted))
            for operator, block in (statement.get("Condition") or {}).items()
            for key, wanted in block.items()
        )
    )


def _holds(operator: str, given: Values, wanted: Values) -> bool:
    """One condition key; an absent key holds for ForAllValues and IfExists, as at AWS."""
    if operator == "Null":
        return (not given) == (wanted == ("true",))
    if operator in ("ForAllValues:StringEquals", "StringEqualsIfExists"):
        return set(given) <= set(wanted)
    if operator == "StringEquals":
        return len(given) == 1 and given[0] in wanted
    raise NotImplementedError(f"the condition operator {operator} is not judged here")


def _asked(parameters: Mapping[str, Any]) -> dict[str, Values]:
    """DynamoDB's condition keys, where the call names what they are about."""
    found: dict[str, Values] = {}
    names = parameters.get("ExpressionAttributeNames", {})
    key = parameters.get("Key", {})
    if "ProjectionExpression" in parameters:
        asked = [word.strip() for word in parameters["ProjectionExpression"].split(",")]
        found["dynamodb:Attributes"] = tuple(sorted({names.get(word, word) for word in asked} | set(key)))
    if len(key) == 1:  # a table without sort key
        found["dynamodb:LeadingKeys"] = tuple(str(v) for value in key.values() for v in value.values())
    return found


def _listed(value: Any) -> Values:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
