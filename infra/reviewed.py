"""Findings of cdk-nag that we have read and leave as they are, each with its reason.

In: the stack. Out: acknowledgements on its constructs; any other finding fails the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import Validations
from constructs import IConstruct

from .allow import wildcard_reasons
from .config import Deployment
from .logical_ids import camel
from .permissions import permissions

WILDCARD = "AwsSolutions::AwsSolutions-IAM5[Resource::*]"
WILDCARD_IN = "AwsSolutions::AwsSolutions-IAM5[Resource::arn:aws:{service}:{{region}}:{{account}}:{resource}]"


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One accepted finding: where, which rule, and why it stays."""

    path: str  # of the construct below the stack
    rule: str
    reason: str


REVIEWED = (
    Reviewed(
        "Functions",
        "AwsSolutions::AwsSolutions-L1",
        "The Python version is a setting: the bundle's compiled wheels are chosen for it and tested with it",
    ),
    Reviewed(
        "Approvals/ReviewApi",
        "AwsSolutions::AwsSolutions-APIG4",
        "A mailed link is opened without AWS credentials: its 256-bit secret is the authority",
    ),
    Reviewed(
        "Workflow/IncidentWorkflow",
        "AwsSolutions::AwsSolutions-SF1",
        "Failures are logged; the full history stays in Step Functions, because it carries the task token",
    ),
    Reviewed(
        "Workflow/WorkflowRole",
        WILDCARD,
        "Log delivery and X-Ray have no resource level; functions are named one by one",
    ),
    Reviewed(
        "Approvals/SignedApproverPolicy",
        WILDCARD_IN.format(service="execute-api", resource="<ReviewApi>/$default/GET/incidents/*"),
        "An approver reads any incident of this one API",
    ),
    Reviewed(
        "Approvals/SignedApproverPolicy",
        WILDCARD_IN.format(service="execute-api", resource="<ReviewApi>/$default/POST/incidents/*/decision"),
        "An approver decides any incident of this one API; the row behind it says what counts",
    ),
    Reviewed(
        "Approvals/SignedApproverPolicy",
        WILDCARD_IN.format(service="execute-api", resource="<ReviewApi>/$default/POST/incidents/*/release"),
        "An approver releases what any ended incident left contained; only what the incident itself holds",
    ),
    Reviewed(
        "Functions/ReconcileRole",
        WILDCARD_IN.format(service="states", resource="execution:<IncidentWorkflow.Name>:*"),
        "Executions of our one state machine; their names are those of incidents and not known beforehand",
    ),
    Reviewed(
        "TrainingSide/TrainingPodPolicy",
        WILDCARD,
        "PutMetricData has no resource level; a condition limits it to our namespace",
    ),
)


def acknowledge(stack: cdk.Stack, config: Deployment, functions: Iterable[str]) -> None:
    """Tell cdk-nag; wildcards of functions take their reason from `permissions.py`."""
    of_functions = tuple(
        Reviewed(f"Functions/{camel(step)}Role", WILDCARD, reason)
        for step, reason in wildcard_reasons({s: permissions(config, s) for s in functions}).items()
    )
    for entry in (*REVIEWED, *of_functions):
        construct: IConstruct = stack
        for part in entry.path.split("/"):
            construct = construct.node.find_child(part)
        rule = entry.rule.format(region=config.region, account=config.account)
        Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=entry.reason))
