"""Least privilege as data: step -> what it may do, and where. Nothing is granted anywhere else.

In: the table below. Out: the only policy statements of each function's role. Next: `functions.py`.
IAM cannot limit which node ids a call names; that is guarded in the steps themselves. `*` needs a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from training_agent.contract import METRIC_NAMESPACE

from .allow import Allow
from .config import Deployment
from .places import Place


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


VERDICT = (
    "approval_id",
    "document",
    "state",
    "mailed",
    "answer",
    "reason",
    "decided_at",
    "decided_by",
    "approval",
    "approver",
)
# The page that shows never sees the task token: only these attributes may be asked for, and a read that names
# none, which would return everything, is denied (ForAllValues alone holds for a key that is absent).
SHOW = Allow(
    "dynamodb",
    ("GetItem",),
    at=(Place.APPROVALS,),
    conditions={
        "ForAllValues:StringEquals": {"dynamodb:Attributes": list(VERDICT)},
        "Null": {"dynamodb:Attributes": "false"},
    },
)
ANSWER = Allow(
    "states",
    ("SendTaskSuccess",),
    at=(Place.EVERYTHING,),
    reason="Step Functions has no resource level for task tokens",
)
OWN_METRICS = Allow(
    "cloudwatch",
    ("PutMetricData",),
    at=(Place.EVERYTHING,),
    reason="PutMetricData has no resource level; a condition limits it to our namespace",
    conditions={"StringEquals": {"cloudwatch:namespace": METRIC_NAMESPACE}},
)
METRICS_OF_JOBS = Allow(
    "cloudwatch",
    ("GetMetricData",),
    at=(Place.EVERYTHING,),
    reason="GetMetricData has no resource level and reads numbers only",
)
FAILURES = Allow("sqs", ("SendMessage",), at=(Place.FUNCTION_DEAD_LETTERS,))  # of asynchronous calls
TELEMETRY = Allow("aps", ("QueryMetrics",), at=(Place.TELEMETRY,))
BREAKER = Allow(
    "dynamodb",
    ("UpdateItem",),
    at=(Place.CONTROL,),
    conditions={
        "ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["breaker"]},
        "Null": {"dynamodb:LeadingKeys": "false"},
    },
)
OPEN_BREAKER = replace(BREAKER, actions=("PutItem",))  # over a replacement whose end was not seen
REPLACING = (  # whatever the method
    *KUBERNETES,
    ROWS,
    HISTORY,
    _rows("GetItem", of=(Place.APPROVALS,)),
    SWITCHES,
    TAKE_LOCK,  # also counts the replacements of the day and opens the breaker
    FREE_LOCK,
    NEWS,
)
IN_VPC = Allow(
    "ec2",
    (
        "CreateNetworkInterface",
        "DeleteNetworkInterface",
        "DescribeNetworkInterfaces",
        "DescribeSubnets",
        "AssignPrivateIpAddresses",
        "UnassignPrivateIpAddresses",
    ),
    at=(Place.EVERYTHING,),
    reason="Lambda makes the network interface of a function in a VPC; its id is not known before",
)


PERMISSIONS: Mapping[str, tuple[Allow, ...]] = {
    "register": (
        _receive(Place.REGISTRATION_QUEUE),
        _cluster("ListClusterNodes"),
        *KUBERNETES,
        _rows("PutItem", of=(Place.REGISTRATIONS,)),
        SWITCHES,
        _rows("PutItem", of=(Place.QUARANTINE,)),  # the mode row
    ),
    "ingest": (
        _receive(Place.ALARM_QUEUE),
        ROWS,
        HISTORY,
        _rows("Query", of=(Place.REGISTRATIONS,)),  # how many nodes a job really has
        Allow("states", ("StartExecution",), at=(Place.WORKFLOW,)),
        NEWS,
    ),
    "locate": (
        _cluster("ListClusterNodes"),
        ROWS,
        HISTORY,
        _rows("DeleteItem", of=(Place.INCIDENTS,)),  # gates that it took and cannot have all of
        _rows("GetItem", "Query", of=(Place.REGISTRATIONS,)),
        NEWS,
    ),
    "contain": (
        *KUBERNETES,
        ROWS,
        HISTORY,
        SWITCHES,
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.QUARANTINE,)),
        NEWS,
    ),
    "decide": (ROWS, HISTORY, SWITCHES, NEWS),
    "confirm": (
        _cluster(
            "StartClusterHealthCheck", "ListClusterNodes", "ListClusterOperations", "DescribeClusterOperation"
        ),
        *KUBERNETES,
        ROWS,
        HISTORY,
        _rows("GetItem", of=(Place.APPROVALS,)),  # a deep check that needs a yes
        SWITCHES,
        TAKE_LOCK,
        FREE_LOCK,
        NEWS,
    ),
    "request_approval": (
        Allow("sns", ("Publish", "ListSubscriptionsByTopic"), at=(Place.TOPIC,)),
        ROWS,
        HISTORY,
        _rows("GetItem", "PutItem", "UpdateItem", of=(Place.APPROVALS,)),
        SWITCHES,  # whoever ends at a human in observe mode was only observed
        NEWS,
    ),
    "replace": (_cluster("BatchReplaceClusterNodes", "ListClusterNodes"), *REPLACING),
    "replace_by_label": (_cluster("ListClusterNodes"), *REPLACING),  # the label: by RBAC and admission policy
    "verify": (
        _cluster("ListClusterNodes"),
        *KUBERNETES,
        ROWS,
        HISTORY,  # of its effects as well: was a replacement requested?
        TAKE_LOCK,  # and opens the breaker
        FREE_LOCK,
        NEWS,
    ),
    "resume": (
        *KUBERNETES,
        ROWS,
        HISTORY,
        _rows("DeleteItem", of=(Place.INCIDENTS,)),  # its gate
        _rows("GetItem", of=(Place.APPROVALS,)),
        SWITCHES,
        FREE_LOCK,
        OPEN_BREAKER,
        _rows("Query", of=(Place.REGISTRATIONS,)),
        _rows("GetItem", "UpdateItem", of=(Place.QUARANTINE,)),
        NEWS,
    ),
    "approval_show": (SHOW,),
    "approval_decide": (_rows("GetItem", "UpdateItem", of=(Place.APPROVALS,)), ANSWER),
    "approval_api": (
        _rows("GetItem", "UpdateItem", of=(Place.APPROVALS,)),
        _rows("GetItem", "Query", of=(Place.INCIDENTS,)),
        BREAKER,
        ANSWER,
        Allow("lambda", ("InvokeFunction",), at=(Place.RESUME,)),  # releases, and judges whether it may
    ),
    "reconcile": (
        _receive(Place.CLUSTER_EVENT_QUEUE),
        FAILURES,
        _cluster("ListClusterNodes"),
        *KUBERNETES,
        ROWS,
        HISTORY,
        _rows("DeleteItem", of=(Place.INCIDENTS,)),  # gates of incidents that have ended
        _rows("GetItem", "UpdateItem", of=(Place.APPROVALS,)),
        SWITCHES,
        FREE_LOCK,
        OPEN_BREAKER,
        _rows("PutItem", of=(Place.QUARANTINE,)),  # the mode row
        ANSWER,
        Allow("states", ("DescribeExecution",), at=(Place.EXECUTIONS,)),
        Allow("sns", ("Publish", "ListSubscriptionsByTopic"), at=(Place.TOPIC,)),  # of what nobody ended
        METRICS_OF_JOBS,
        OWN_METRICS,
        NEWS,
    ),
    "drill": (FAILURES, NEWS),
}


def permissions(config: Deployment, step: str) -> tuple[Allow, ...]:
    """What `step` may do in this deployment: its row, and what the settings add to it."""
    allows = PERMISSIONS[step]
    if step == "confirm" and config.telemetry_workspace:
        allows = (*allows, TELEMETRY)
    if config.in_vpc and talks_to_kubernetes(step):
        allows = (*allows, IN_VPC)
    return allows


def talks_to_kubernetes(step: str) -> bool:
    """Whether the row of `step` has the way to the Kubernetes API."""
    return any(Place.EKS_CLUSTER in allow.at for allow in PERMISSIONS[step])
