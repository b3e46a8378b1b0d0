"""What a resolved template asks for, as values. In: `template.Template`. Out: `Plan`, which `stack` builds.

Only what somebody here acts on is read; the rest of each resource's properties has no effect locally.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .names import function_name_of
from .template import Template, TemplateError

Overrides = Mapping[str, Mapping[str, str]]
EVERY_FUNCTION = "*"


@dataclass(frozen=True, slots=True)
class Function:
    """A Lambda function; `variables` is its whole environment as the template gives it."""

    logical_id: str
    name: str
    handler: str  # "package.module.function"
    variables: dict[str, str]
    timeout_seconds: float
    memory_mb: int
    role: str = ""  # ARN
    statements: tuple[Mapping[str, Any], ...] = ()  # of the role; a function without a role is not judged

    @property
    def access_key(self) -> str:
        """Access key id of the role's credentials: services here know by it who calls."""
        return f"AKIALOCAL{self.name}"


@dataclass(frozen=True, slots=True)
class QueueMapping:
    """An event source mapping from a queue to a function."""

    queue: str
    function: str
    batch_size: int
    partial_failures: bool  # ReportBatchItemFailures


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the HTTP API: `method` may be ANY, `path` may hold `{name}` parts."""

    method: str
    path: str
    function: str
    permitted: bool = True  # the function's own policy lets the API invoke it
    signed: bool = False  # behind the AWS_IAM authorizer

    @property
    def key(self) -> str:
        """RouteKey, as the payload carries it."""
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is created, by physical names; properties are those of CloudFormation."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    subscriptions: list[dict[str, Any]] = field(default_factory=list)
    buses: list[str] = field(default_factory=list)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    machines: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    mappings: list[QueueMapping] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    kubernetes_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # role -> groups


def read(template: Template, overrides: Overrides) -> Plan:
    """Read a template.

    Args: overrides: function's logical id (or "*") -> variable -> value; replaces values, never adds a
    variable, so that a variable that the template lacks stays missing.

    Raises:
        TemplateError: the template or the overrides do not make sense.
    """
    return Plan(
        tables=_named(template, "AWS::DynamoDB::Table"),
        queues=_named(template, "AWS::SQS::Queue"),
        topics=[template.name_of(i) for i, _ in template.of_type("AWS::SNS::Topic")],
        subscriptions=[p for _, p in template.of_type("AWS::SNS::Subscription")],
        buses=[template.name_of(i) for i, _ in template.of_type("AWS::Events::EventBus")],
        rules=_named(template, "AWS::Events::Rule"),
        machines=_named(template, "AWS::StepFunctions::StateMachine"),
        functions=_functions(template, overrides),
        mappings=_mappings(template),
        routes=_routes(template),
        kubernetes_groups={
            p["PrincipalArn"]: tuple(p["KubernetesGroups"])
            for _, p in template.of_type("AWS::EKS::AccessEntry")
        },
    )


def definition_of(machine: Mapping[str, Any]) -> str:
    """The state machine's ASL as JSON text."""
    definition = machine.get("DefinitionString", machine.get("Definition"))
    if definition is None:
        raise TemplateError("a state machine of the template has no inline definition")
    text = definition if isinstance(definition, str) else json.dumps(definition)
    for name, value in (machine.get("DefinitionSubstitutions") or {}).items():
        text = text.replace("${" + name + "}", str(value))
    return text


def _named(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    return {template.name_of(i): p for i, p in template.of_type(kind)}


def _functions(template: Template, overrides: Overrides) -> dict[str, Function]:
    functions = {}
    roles = dict(_roles(template))
    for logical_id, p in template.of_type("AWS::Lambda::Function"):
        variables = {k: str(v) for k, v in p.get("Environment", {}).get("Variables", {}).items()}
        own = overrides.get(logical_id, {})
        if missing := sorted(set(own) - set(variables)):
            raise TemplateError(f"overrides of {logical_id}: the template gives it no variable {missing}")
        common = {k: v for k, v in overrides.get(EVERY_FUNCTION, {}).items() if k in variables}
        functions[template.name_of(logical_id)] = Function(
            logical_id=logical_id,
            name=template.name_of(logical_id),
            handler=p["Handler"],
            variables=variables | common | dict(own),
            timeout_seconds=float(p.get("Timeout", 3)),
            memory_mb=int(p.get("MemorySize", 128)),
            role=p.get("Role", ""),
            statements=roles.get(p.get("Role", ""), ()),
        )
    known = {f.logical_id for f in functions.values()} | {EVERY_FUNCTION}
    if unknown := sorted(set(overrides) - known):
        raise TemplateError(f"overrides name functions that the template does not have: {unknown}")
    return functions


def _roles(template: Template) -> Iterator[tuple[str, tuple[Mapping[str, Any], ...]]]:
    """(ARN, statements) of each role."""
    for logical_id, p in template.of_type("AWS::IAM::Role"):
        documents = [policy["PolicyDocument"] for policy in p.get("Policies", [])]
        yield template.arn_of(logical_id), tuple(s for d in documents for s in d["Statement"])


def _mappings(template: Template) -> list[QueueMapping]:
    return [
        QueueMapping(
            queue=p["EventSourceArn"].rsplit(":", 1)[-1],
            function=function_name_of(p["FunctionName"]),
            batch_size=int(p.get("BatchSize", 10)),
            partial_failures="ReportBatchItemFailures" in p.get("FunctionResponseTypes", []),
        )
        for _, p in template.of_type("AWS::Lambda::EventSourceMapping")
        if p.get("Enabled", True)
    ]


def _routes(template: Template) -> list[Route]:
    stages = {p["StageName"] for _, p in template.of_type("AWS::ApiGatewayV2::Stage")}
    if stages - {"$default"}:
        raise TemplateError(f"HTTP API stages {sorted(stages)}: the local front serves $default only")
    permissions = [p for _, p in template.of_type("AWS::Lambda::Permission")]
    may = [
        (function_name_of(p["FunctionName"]), p["SourceArn"])
        for p in permissions
        if p["Principal"] == "apigateway.amazonaws.com"
    ]
    judged = bool(dict(template.of_type("AWS::IAM::Role")))  # a test's own template gives nobody a role
    integrations = dict(template.of_type("AWS::ApiGatewayV2::Integration"))
    routes = []
    for logical_id, p in template.of_type("AWS::ApiGatewayV2::Route"):
        integration = integrations.get(
            p["Target"].removeprefix("integrations/").removeprefix(template.prefix)
        )
        if integration is None or integration.get("PayloadFormatVersion") != "2.0":
            raise TemplateError(f"{logical_id}: only Lambda integrations with payload 2.0 are served")
        method, path = p["RouteKey"].split(" ", 1)
        name = function_name_of(integration["IntegrationUri"])
        permitted = any(f == name and source.endswith(f"/*/*{path}") for f, source in may)
        signed = p.get("AuthorizationType") == "AWS_IAM"
        routes.append(Route(method, path, name, permitted or not judged, signed))
    return routes if stages else []  # an API without a stage serves nothing
