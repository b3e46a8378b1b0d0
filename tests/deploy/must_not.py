"""What no role may do: the right-hand column of the least-privilege table, as questions that IAM must deny.

In: nothing. Out: `MUST_NOT`, asked of our own judge in `tests/infra/test_requests.py` and of the independent
simulator in `make validate`.
"""

from __future__ import annotations

from emulator.iam import Request
from emulator.names import arn

OURS, OTHER = (arn("sagemaker", f"cluster/{id_}") for id_ in ("demo00000000", "other0000000"))
TRAINING = "TrainingPod"
FUNCTIONS = (
    "Register", "Ingest", "Locate", "Contain", "Decide", "Confirm", "RequestApproval", "Replace",
    "ReplaceByLabel", "Verify", "Resume", "Reconcile", "Drill", "ApprovalShow", "ApprovalDecide",
    "ApprovalApi",
)  # fmt: skip


def table(operation: str, name: str, **context: tuple[str, ...]) -> Request:
    keys = {f"dynamodb:{key}": values for key, values in context.items()}
    return Request(f"dynamodb:{operation}", arn("dynamodb", f"table/{name}"), keys)


def cluster(operation: str, which: str = OURS) -> Request:
    return Request(f"sagemaker:{operation}", which)


def bus(name: str, source: str, kind: str) -> Request:
    context = {"events:source": (source,), "events:detail-type": (kind,)}
    return Request("events:PutEvents", arn("events", f"event-bus/{name}"), context)


EKS = Request("eks:DescribeCluster", arn("eks", "cluster/demo-eks"))
ANSWER = Request("states:SendTaskSuccess", "*")
START = Request("states:StartExecution", arn("states", "stateMachine:IncidentWorkflow"))
MAIL = Request("sns:Publish", arn("sns", "ApprovalTopic"))
REPLACE, CHECK = cluster("BatchReplaceClusterNodes"), cluster("StartClusterHealthCheck")
BUS = "training-sdc-demo"

CHANGES = ("UpdateCluster", "DeleteCluster", "BatchDeleteClusterNodes", "BatchRebootClusterNodes")

EVERYBODY = (
    *(
        cluster(o)
        for o in ("UpdateCluster", "DeleteCluster", "BatchDeleteClusterNodes", "BatchRebootClusterNodes")
    ),
    cluster("DescribeCluster", OTHER),
    table("Scan", "ApprovalTable"),
    table("DeleteTable", "IncidentTable"),
    Request("iam:PassRole", arn("iam", "role/ReplaceRole", region="")),
)
ROWS: dict[str, tuple[Request, ...]] = {
    TRAINING: (
        bus("default", "training.sdc", "SDC Alarm"),
        bus(BUS, "aws.sagemaker", "SDC Alarm"),
        bus(BUS, "training.sdc", "SDC Incident State Changed"),
        Request("events:PutEvents", arn("events", f"event-bus/{BUS}")),  # names neither source nor type
        Request("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": ("Other",)}),
        table("GetItem", "ApprovalTable"),
        table("PutItem", "QuarantineTable"),
        REPLACE, START, EKS,
    ),
    "Register": (REPLACE, CHECK, START, table("PutItem", "ApprovalTable"), table("PutItem", "ControlTable")),
    "Locate": (REPLACE, CHECK, EKS, table("PutItem", "RegistrationTable")),
    "Ingest": (
        cluster("DescribeCluster"), cluster("ListClusterNodes"), EKS, MAIL,
        Request("states:StartExecution", arn("states", "stateMachine:Another")),
    ),
    "Contain": (REPLACE, CHECK, ANSWER, MAIL, table("PutItem", "ControlTable")),
    "Resume": (REPLACE, CHECK, ANSWER, MAIL, table("UpdateItem", "ApprovalTable")),
    "Decide": (cluster("DescribeCluster"), EKS, ANSWER, START, MAIL, table("PutItem", "ControlTable")),
    "Confirm": (
        REPLACE, cluster("StartClusterHealthCheck", OTHER), ANSWER, table("PutItem", "ApprovalTable"),
    ),
    "RequestApproval": (ANSWER, START, EKS, REPLACE, Request("sns:Publish", arn("sns", "OperatorTopic"))),
    "ApprovalShow": (
        table("GetItem", "ApprovalTable"),  # names no attribute: would return all
        table("GetItem", "ApprovalTable", Attributes=("approval_id", "task_token")),
        table("UpdateItem", "ApprovalTable"), table("PutItem", "ApprovalTable"),
        table("DeleteItem", "ApprovalTable"),
        ANSWER, START, Request("kms:Decrypt", arn("kms", "key/00000000-0000-0000-0000-000000000000")),
    ),
    "ApprovalDecide": (REPLACE, CHECK, MAIL, EKS, table("PutItem", "ApprovalTable")),
    "ApprovalApi": (
        REPLACE, CHECK, MAIL, EKS, table("PutItem", "IncidentTable"), table("UpdateItem", "QuarantineTable"),
        Request("lambda:InvokeFunction", arn("lambda", "function:ReplaceFunction")),
        table("UpdateItem", "ControlTable", LeadingKeys=("kill_switch",)),
        table("UpdateItem", "ControlTable"),
    ),
    "Replace": (
        cluster("BatchReplaceClusterNodes", OTHER), CHECK, ANSWER,
        table("UpdateItem", "ApprovalTable"), table("PutItem", "ApprovalTable"),
    ),
    "ReplaceByLabel": (REPLACE, CHECK, ANSWER, table("PutItem", "ApprovalTable")),
    "Verify": (REPLACE, CHECK, ANSWER),
    "Reconcile": (
        REPLACE, CHECK, START, Request("sns:Publish", arn("sns", "OperatorTopic")),
        table("PutItem", "ControlTable"), table("UpdateItem", "QuarantineTable"),
        Request("cloudwatch:PutMetricData", "*", {"cloudwatch:namespace": ("AWS/SageMaker",)}),
    ),
    "Drill": (REPLACE, CHECK, START, table("GetItem", "IncidentTable")),
}  # fmt: skip
MUST_NOT = [(f, r) for f in FUNCTIONS for r in EVERYBODY] + [(f, r) for f, rows in ROWS.items() for r in rows]
