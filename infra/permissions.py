"""Least privilege as data: step -> what it may do, and where. Nothing is granted anywhere else.

In: the table below. Out: the only policy statements of each function's role. Next: `functions.py`.
IAM cannot limit which node ids a call names; that is guarded in the steps themselves. `*` needs a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aws_cdk import aws_iam as iam

from .places import Place, Places


@dataclass(frozen=True, slots=True)
class Allow:
    """One statement: these actions of one service at these places."""

    service: str
    actions: tuple[str, ...]
    at: tuple[Place, ...]
    reason: str = ""  # why a wildcard, if there is one
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wild = Place.EVERYTHING in self.at or any("*" in action for action in self.actions)
        assert not wild or self.reason, f"{self.service}:{self.actions} is a wildcard and gives no reason"

    @property
    def qualified(self) -> tuple[str, ...]:
        """`service:Action`, as in a policy."""
        return tuple(f"{self.service}:{action}" for action in self.actions)

    def statement(self, places: Places) -> iam.PolicyStatement:
        """The same as CDK knows it."""
        return iam.PolicyStatement(
            actions=list(self.qualified),
            resources=[places.arns[place] for place in self.at],
            conditions=dict(self.conditions) or None,
        )


def wildcard_reasons(table: Mapping[str, tuple[Allow, ...]]) -> dict[str, str]:
    """Step -> why it holds a wildcard; steps without one are left out."""
    found = {step: [allow.reason for allow in allows if allow.reason] for step, allows in table.items()}
    return {step: "; ".join(reasons) for step, reasons in found.items() if reasons}


def _rows(*actions: str, of: tuple[Place, ...]) -> Allow:
    return Allow("dynamodb", actions, at=of)


def _cluster(*actions: str) -> Allow:
    return Allow("sagemaker", actions, at=(Place.CLUSTER,))


def _receive(queue: Place) -> Allow:
    needed = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")
    return Allow("sqs", needed, at=(queue,))


# How a function finds the Kubernetes API: HyperPod cluster -> EKS cluster -> endpoint and CA. What it may do
# there is said by RBAC (eks_access).
KUBERNETES = (_cluster("DescribeCluster"), Allow("eks", ("DescribeCluster",), at=(Place.EKS_CLUSTER,)))
ROWS = _rows("GetItem", "PutItem", "UpdateItem", of=(Place.INCIDENTS,))
HISTORY = _rows("Query", of=(Place.INCIDENTS,))  # of instances, GPUs and the job
NEWS = Allow("events", ("PutEvents",), at=(Place.BUS,))  # "SDC Incident State Changed"
SWITCHES = _rows("GetItem", of=(Place.CONTROL,))  # mode and kill switch, read right before every effect
TAKE_LOCK, FREE_LOCK = _rows("PutItem", of=(Place.CONTROL,)), _rows("DeleteItem", of=(Place.CONTROL,))


PERMISSIONS: Mapping[str, tuple[Allow, ...]] = {
    "register": (
        _receive(Place.REGISTRATION_QUEUE),
        _cluster("ListClusterNodes"),
        *KUBERNETES,
        _rows("PutItem", of=(Place.REGISTRATIONS,)),
    ),
    "ingest": (
        _receive(Place.ALARM_QUEUE),
        ROWS,
        Allow("states", ("StartExecution",), at=(Place.WORKFLOW,)),
        NEWS,
    ),
    "locate": (
        _cluster("ListClusterNodes"),
        ROWS,
        HISTORY,
        _rows("GetItem", of=(Place.REGISTRATIONS,)),
        NEWS,
    ),
    "contain": (
        *KUBERNETES,
        ROWS,
        HISTORY,
        SWITCHES,
        _rows("PutItem", "UpdateItem", of=(Place.QUARANTINE,)),
        NEWS,
    ),
    "decide": (ROWS, HISTORY, SWITCHES, NEWS),
    "confirm": (
        _cluster("StartClusterHealthCheck", "ListClusterNodes"),
        *KUBERNETES,
        ROWS,
        HISTORY,
        SWITCHES,
        TAKE_LOCK,
        FREE_LOCK,
        NEWS,
    ),
    "request_approval": (
        Allow("sns", ("Publish", "ListSubscriptionsByTopic"), at=(Place.TOPIC,)),
        ROWS,
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.APPROVALS,)),
        NEWS,
    ),
    "replace": (
        _cluster("BatchReplaceClusterNodes", "ListClusterNodes"),
        *KUBERNETES,
        ROWS,
        _rows("GetItem", of=(Place.APPROVALS,)),
        SWITCHES,
        TAKE_LOCK,
        FREE_LOCK,
        _rows("UpdateItem", of=(Place.CONTROL,)),  # counts the replacements of the day
        NEWS,
    ),
    "verify": (_cluster("DescribeCluster", "ListClusterNodes"), ROWS, FREE_LOCK, NEWS),
    "resume": (
        *KUBERNETES,
        ROWS,
        _rows("DeleteItem", of=(Place.INCIDENTS,)),  # its gate
        _rows("GetItem", of=(Place.APPROVALS,)),
        SWITCHES,
        FREE_LOCK,
        _rows("Query", of=(Place.REGISTRATIONS,)),
        _rows("UpdateItem", of=(Place.QUARANTINE,)),
        NEWS,
    ),
    "approval_show": (_rows("GetItem", of=(Place.APPROVALS,)),),
    "approval_decide": (
        _rows("GetItem", "UpdateItem", of=(Place.APPROVALS,)),
        Allow(
            "states",
            ("SendTaskSuccess",),
            at=(Place.EVERYTHING,),
            reason="Step Functions has no resource level for task tokens",
        ),
    ),
}
