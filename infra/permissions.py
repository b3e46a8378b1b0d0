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


READ_WRITE = ("GetItem", "Query", "PutItem", "UpdateItem")
LOCK = ("GetItem", "PutItem", "UpdateItem", "DeleteItem")
CLUSTER_READ = Allow(
    "sagemaker", ("DescribeCluster", "DescribeClusterNode", "ListClusterNodes"), at=(Place.CLUSTER,)
)
EKS_LOGIN = Allow("eks", ("DescribeCluster",), at=(Place.EKS_CLUSTER,))  # endpoint and CA; RBAC does the rest
TELL = Allow("events", ("PutEvents",), at=(Place.BUS,))  # "SDC Incident State Changed"
OWN_ROWS = _rows(*READ_WRITE, of=(Place.INCIDENTS,))
SWITCHES = _rows("GetItem", of=(Place.CONTROL,))  # mode and kill switch, read right before every effect


def _receive(queue: Place) -> Allow:
    return Allow(
        "sqs",
        ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes"),
        at=(queue,),
    )


PERMISSIONS: Mapping[str, tuple[Allow, ...]] = {
    "register": (
        _receive(Place.REGISTRATION_QUEUE),
        CLUSTER_READ,
        EKS_LOGIN,
        _rows("GetItem", "PutItem", of=(Place.REGISTRATIONS,)),
    ),
    "ingest": (
        _receive(Place.ALARM_QUEUE),
        OWN_ROWS,
        Allow("states", ("StartExecution",), at=(Place.WORKFLOW,)),
        TELL,
    ),
    "locate": (
        CLUSTER_READ,
        OWN_ROWS,
        _rows("GetItem", "Query", of=(Place.REGISTRATIONS,)),
        TELL,
    ),
    "contain": (
        EKS_LOGIN,
        OWN_ROWS,
        SWITCHES,
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.QUARANTINE,)),
        TELL,
    ),
    "decide": (OWN_ROWS, SWITCHES, TELL),
    "confirm": (
        Allow("sagemaker", ("StartClusterHealthCheck",), at=(Place.CLUSTER,)),
        CLUSTER_READ,
        EKS_LOGIN,
        OWN_ROWS,
        _rows(*LOCK, of=(Place.CONTROL,)),
        TELL,
    ),
    "request_approval": (
        Allow("sns", ("Publish", "ListSubscriptionsByTopic"), at=(Place.TOPIC,)),
        OWN_ROWS,
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.APPROVALS,)),
        TELL,
    ),
    "replace": (
        Allow("sagemaker", ("BatchReplaceClusterNodes",), at=(Place.CLUSTER,)),
        CLUSTER_READ,
        EKS_LOGIN,
        OWN_ROWS,
        _rows("GetItem", of=(Place.APPROVALS,)),
        _rows(*LOCK, of=(Place.CONTROL,)),
        TELL,
    ),
    "verify": (CLUSTER_READ, OWN_ROWS, _rows(*LOCK, of=(Place.CONTROL,)), TELL),
    "resume": (
        EKS_LOGIN,
        OWN_ROWS,
        _rows("DeleteItem", of=(Place.INCIDENTS,)),  # the gate
        _rows("GetItem", of=(Place.APPROVALS,)),
        _rows(*LOCK, of=(Place.CONTROL,)),
        _rows("Query", of=(Place.REGISTRATIONS,)),
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.QUARANTINE,)),
        TELL,
    ),
    "approval_show": (_rows("GetItem", of=(Place.APPROVALS,)),),
    "approval_decide": (
        _rows("GetItem", "UpdateItem", of=(Place.APPROVALS,)),
        Allow(
            "states",
            ("SendTaskSuccess", "SendTaskFailure"),
            at=(Place.EVERYTHING,),
            reason="Step Functions has no resource level for task tokens",
        ),
    ),
}
