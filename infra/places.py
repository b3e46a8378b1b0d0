"""The places that functions reach: for each, the ARN a policy names and the value an environment holds.

In: the constructs of storage, triggers and approvals. Out: `Places`. Next: `permissions.py` (what a step may
do there) and `functions.py` (which variables a step holds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn

from .approvals import Approvals
from .cluster_events import ClusterEvents
from .config import Deployment
from .storage import Storage
from .triggers import Triggers


class Place(str, Enum):
    """What a permission can be given on."""

    INCIDENTS = "IncidentTable"
    APPROVALS = "ApprovalTable"
    REGISTRATIONS = "RegistrationTable"
    QUARANTINE = "QuarantineTable"
    CONTROL = "ControlTable"
    CLUSTER = "HyperPod cluster"
    EKS_CLUSTER = "EKS cluster"
    BUS = "SdcBus"
    TOPIC = "ApprovalTopic"
    WORKFLOW = "IncidentWorkflow"
    EXECUTIONS = "executions of IncidentWorkflow"
    RESUME = "ResumeFunction"
    ALARM_QUEUE = "AlarmQueue"
    REGISTRATION_QUEUE = "RegistrationQueue"
    CLUSTER_EVENT_QUEUE = "ClusterEventQueue"
    FUNCTION_DEAD_LETTERS = "FunctionDeadLetters"
    TELEMETRY = "Prometheus workspace"
    EVERYTHING = "*"  # needs a reason in the permission


@dataclass(frozen=True, slots=True)
class Places:
    """ARNs by place, and deployed values by environment variable."""

    arns: Mapping[Place, str]
    variables: Mapping[str, str]

    def with_workflow(self, machine: sfn.StateMachine, resume: lambda_.Function) -> Places:
        """The same places once the state machine and the function that releases are known."""
        arn = machine.state_machine_arn
        executions = cdk.Stack.of(machine).format_arn(
            service="states",
            resource="execution",
            resource_name=f"{machine.state_machine_name}:*",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )
        return replace(
            self,
            arns={
                **self.arns,
                Place.WORKFLOW: arn,
                Place.EXECUTIONS: executions,
                Place.RESUME: resume.function_arn,
            },
            variables={
                **self.variables,
                "STATE_MACHINE_ARN": arn,
                "RESUME_FUNCTION": resume.function_name,
            },
        )


def places(
    stack: cdk.Stack,
    config: Deployment,
    storage: Storage,
    triggers: Triggers,
    cluster_events: ClusterEvents,
    approvals: Approvals,
) -> Places:
    """Collect the places of one deployment; the workflow joins later."""
    eks_cluster = stack.format_arn(service="eks", resource="cluster", resource_name=config.eks_cluster_name)
    return Places(
        arns={
            Place.INCIDENTS: storage.incidents.table_arn,
            Place.APPROVALS: storage.approvals.table_arn,
            Place.REGISTRATIONS: storage.registrations.table_arn,
            Place.QUARANTINE: storage.quarantine.table_arn,
            Place.CONTROL: storage.control.table_arn,
            Place.CLUSTER: config.cluster_arn,
            Place.EKS_CLUSTER: eks_cluster,
            Place.BUS: triggers.bus.event_bus_arn,
            Place.TOPIC: approvals.topic.topic_arn,
            Place.ALARM_QUEUE: triggers.alarms.queue.queue_arn,
            Place.REGISTRATION_QUEUE: triggers.registrations.queue.queue_arn,
            Place.CLUSTER_EVENT_QUEUE: cluster_events.inlet.queue.queue_arn,
            Place.FUNCTION_DEAD_LETTERS: cluster_events.inlet.dead_letters.queue_arn,
            Place.TELEMETRY: stack.format_arn(
                service="aps", resource="workspace", resource_name=config.telemetry_workspace or "none"
            ),
            Place.EVERYTHING: "*",
        },
        variables={
            "INCIDENT_TABLE": storage.incidents.table_name,
            "APPROVAL_TABLE": storage.approvals.table_name,
            "REGISTRATION_TABLE": storage.registrations.table_name,
            "QUARANTINE_TABLE": storage.quarantine.table_name,
            "CONTROL_TABLE": storage.control.table_name,
            "CLUSTER_NAME": config.cluster_name,
            "EVENT_BUS_NAME": triggers.bus.event_bus_name,
            "APPROVAL_TOPIC_ARN": approvals.topic.topic_arn,
            "REVIEW_URL": approvals.url,
            "MODE": config.mode.value,
            "APPROVAL_TIMEOUT_SECONDS": str(config.approval_timeout_seconds),
            "MAX_ALARM_AGE_SECONDS": str(config.max_alarm_age_seconds),
            "REPLACEMENTS_PER_DAY": str(config.replacements_per_day),
            "REPLACEMENT_BUDGET_PERCENT": str(config.replacement_budget_percent),
            "REPLACEMENTS_PER_HOUR": str(config.replacements_per_hour),
            "DEEP_CHECK_ENABLED": str(config.deep_check_enabled).lower(),
            "REPLACEMENT_METHOD": config.replacement_method.value,
            "APPROVAL_LINKS": str(config.approval_links).lower(),
            "TRAINING_SERVICE_ACCOUNTS": ",".join(config.training_service_accounts),
            "HEARTBEAT_TIMEOUT_SECONDS": str(config.heartbeat_timeout_seconds),
            "EKS_CLUSTER_NAME": config.eks_cluster_name,
            "TELEMETRY_URL": _telemetry_url(config, stack),
        },
    )


def _telemetry_url(config: Deployment, stack: cdk.Stack) -> str:
    """Base of Prometheus queries; empty when there is no workspace, which means: telemetry is missing."""
    if not config.telemetry_workspace:
        return ""
    return f"https://aps-workspaces.{stack.region}.amazonaws.com/workspaces/{config.telemetry_workspace}"
