"""One factory for every Lambda function: its own role, log group and exactly the variables it needs.

In: the name of a function. Out: the function, with the policy of `permissions.py` and the environment that
`lambdas.settings.VARIABLES` lists. Next: `workflow.py` (steps), `triggers.py`, `approvals.py` (entrances).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from lambdas.settings import HANDLERS, VARIABLES
from training_agent.contract import METRIC_NAMESPACE

from .bundling import code
from .config import Architecture, Deployment, Method, SettingsError
from .log_groups import log_group
from .logical_ids import camel, fix
from .permissions import permissions, talks_to_kubernetes
from .places import Places


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between functions beside handler, permissions and variables."""

    purpose: str
    timeout_s: int = 60
    memory_mb: int = 512  # kubernetes and boto3 clients in memory, and CPU for their import


FUNCTIONS: Mapping[str, Shape] = {
    "register": Shape("verifies which node a job's ranks run on, while its pods live"),
    "ingest": Shape("validates an alarm and starts one execution per accused node"),
    "locate": Shape("ranks -> node -> instance -> GPU, from verified registrations"),
    "contain": Shape("hold, cordon or evict, as the decision table's contain column says"),
    "decide": Shape("asks the decision table what comes next"),
    "confirm": Shape("telemetry, history and deep health check for ambiguous findings"),
    "request_approval": Shape("mails the approvers and keeps the task token"),
    "replace": Shape("replaces one approved node, once", timeout_s=120),
    "verify": Shape("waits for the old instance to go and a new one to run"),
    "resume": Shape("sees the job back on a clean checkpoint, releases, closes"),
    "replace_by_label": Shape("sets the label that makes HyperPod replace one approved node", timeout_s=120),
    "reconcile": Shape("judges heartbeats, stuck incidents, undelivered decisions, lost cordons"),
    "drill": Shape("starts a synthetic incident that walks the whole path"),
    "approval_api": Shape("decisions by signed requests; the caller is recorded", timeout_s=29),
    "approval_show": Shape("GET of the review page; changes nothing", timeout_s=10),
    "approval_decide": Shape("POST of the review page; one decision", timeout_s=20),
}
ASYNCHRONOUS = frozenset({"reconcile", "drill"})  # called by the clock
WORKFLOW_STEPS = (
    "locate", "contain", "decide", "confirm", "request_approval", "replace", "verify", "resume",
)  # fmt: skip


def deployed(config: Deployment) -> tuple[str, ...]:
    """Names of the functions that these settings ask for: one way to replace, never both."""
    other = {Method.API: "replace_by_label", Method.LABEL: "replace"}[config.replacement_method]
    return tuple(name for name in FUNCTIONS if name in HANDLERS and name != other)


def steps(config: Deployment) -> dict[str, str]:
    """Step of the workflow -> the function that does it."""
    by_label = config.replacement_method is Method.LABEL
    return {step: "replace_by_label" if step == "replace" and by_label else step for step in WORKFLOW_STEPS}


class FunctionFactory(Construct):
    """Makes functions that share one code package and nothing else."""

    def __init__(self, scope: Construct, config: Deployment, dead: sqs.IQueue) -> None:
        super().__init__(scope, "Functions")
        self._config = config
        self._dead = dead
        self.roles: dict[str, iam.IRole] = {}
        self._code = code(config)
        self._runtime = lambda_.Runtime(f"python{config.python_version}", lambda_.RuntimeFamily.PYTHON)
        self._architecture = {
            Architecture.ARM64: lambda_.Architecture.ARM_64,
            Architecture.X86_64: lambda_.Architecture.X86_64,
        }[config.architecture]

    def make(self, name: str, places: Places) -> lambda_.Function:
        """The function `name`, with its role and log group."""
        shape, id_ = FUNCTIONS[name], camel(name)
        own_log = log_group(self, f"{id_}Log", self._config)
        function = lambda_.Function(
            self,
            f"{id_}Function",
            description=shape.purpose,
            code=self._code,
            handler=HANDLERS[name],
            runtime=self._runtime,
            architecture=self._architecture,
            timeout=cdk.Duration.seconds(shape.timeout_s),
            memory_size=shape.memory_mb,
            environment=self._environment(name, places),
            role=self._role(name, places, own_log),
            log_group=own_log,
            reserved_concurrent_executions=self._config.reserved_concurrency,
            # Nobody waits for the answer of an asynchronous call, so that its failure must not be lost.
            dead_letter_queue=self._dead if name in ASYNCHRONOUS else None,
        )
        self._place(function, name)
        return fix(function, f"{id_}Function")

    def _place(self, function: lambda_.Function, name: str) -> None:
        """Into the VPC, if the Kubernetes endpoint is private and this function talks to it."""
        if not (self._config.in_vpc and talks_to_kubernetes(name)):
            return
        resource = function.node.default_child
        assert isinstance(resource, lambda_.CfnFunction)
        resource.vpc_config = lambda_.CfnFunction.VpcConfigProperty(
            subnet_ids=list(self._config.vpc_subnet_ids),
            security_group_ids=list(self._config.vpc_security_group_ids),
        )

    def _role(self, name: str, places: Places, own_log: logs.LogGroup) -> iam.IRole:
        """A closed role: what `permissions.py` says and writing its own log, and CDK cannot add to it."""
        write_log = iam.PolicyStatement(
            actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[own_log.log_group_arn]
        )
        statements = [write_log, *(allow.statement(places) for allow in permissions(self._config, name))]
        role = iam.Role(
            self,
            f"{camel(name)}Role",
            description=f"Silent data corruption pipeline: {name}",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            inline_policies={name: iam.PolicyDocument(statements=statements)},
        )
        self.roles[name] = fix(role, f"{camel(name)}Role").without_policy_updates()
        return self.roles[name]

    def _environment(self, name: str, places: Places) -> dict[str, str]:
        values = {
            **places.variables,
            "POWERTOOLS_SERVICE_NAME": name,
            "POWERTOOLS_METRICS_NAMESPACE": METRIC_NAMESPACE,
            "LOG_LEVEL": self._config.log_level,
        }
        unknown = sorted(set(VARIABLES[name]) - set(values))
        if unknown:
            raise SettingsError(
                f"lambdas.settings says that {name} needs {', '.join(unknown)}, which the stack does not "
                "know: add it to infra/places.py"
            )
        return {variable: values[variable] for variable in VARIABLES[name]}
