"""`sdc doctor`: is this job, this account, are the approvers and the cluster ready? Reads, never writes.

In: the environment, `Aws`, the deployment. Out: one `Check` each, with its remedy. A check that could not
look has failed: unknown is not healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import MODE_SUBJECT, Env
from . import doctor_job
from .aws import Aws, explained
from .checks import Check, Status
from .deployment import Deployment
from .failures import CliError

# What `lambdas.domain.telemetry` reads; several of them come with the add-on's advanced collection only.
DCGM_METRICS = (
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
)
SCREENING = {
    True: "new nodes are stress-tested before they take pods",
    False: "a newcomer takes pods untested: set OnStartDeepHealthChecks on the group",
}
RECOVERY = {
    "Automatic": "HyperPod reboots or replaces nodes by itself: a deep health check needs an approval first",
    "None": "HyperPod only labels faulty nodes: nodes are replaced by the pipeline's approval alone",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at."""

    env: Mapping[str, str]
    aws: Aws
    find: Callable[[], Deployment]  # raises CliError

    def deployment(self) -> Deployment:
        return self.find()


Look = Callable[[Subject], Iterable[Check]]


def job(s: Subject) -> Iterator[Check]:
    """In the pod."""
    yield doctor_job.node_name(s.env)
    yield doctor_job.identity(s.env)
    yield doctor_job.gpus(s.env)
    yield doctor_job.shared_folder(s.env)


def credentials(s: Subject) -> Iterator[Check]:
    """Whoever runs this."""
    with explained("ask AWS who you are", "sts:GetCallerIdentity"):
        me = s.aws.client("sts").get_caller_identity()
    yield Check("credentials", Status.OK, str(me["Arn"]))


def quarantine(s: Subject) -> Iterator[Check]:
    """The table that a held job polls, and the mode in it."""
    table = s.env.get(Env.QUARANTINE_TABLE) or s.deployment().need("QuarantineTableName")
    with explained(f"read table {table}", "dynamodb:GetItem"):
        item = s.aws.client("dynamodb").get_item(
            TableName=table, Key={"subject": {"S": MODE_SUBJECT}}, ConsistentRead=True
        )
    mode = item.get("Item", {}).get("mode", {}).get("S")
    found = f"{table}; mode {mode}" if mode else f"{table}; no incident has written the mode yet"
    yield Check("quarantine-table", Status.OK, found)


def pipeline(s: Subject) -> Iterator[Check]:
    """Bus, state machine, kill switch."""
    d = s.deployment()
    bus, machine, control = (d.need(n) for n in ("EventBusName", "StateMachineArn", "ControlTableName"))
    with explained(f"describe bus {bus}", "events:DescribeEventBus"):
        s.aws.client("events").describe_event_bus(Name=bus)
    told = s.env.get(Env.EVENT_BUS)
    if told and told != bus:
        remedy = "Set SDC_EVENT_BUS to the stack's output EventBusName."
        yield Check(
            "event-bus", Status.FAILED, f"the job publishes on {told}, the stack listens on {bus}", remedy
        )
    else:
        yield Check("event-bus", Status.OK, bus)
    with explained("describe the state machine", "states:DescribeStateMachine"):
        status = s.aws.client("stepfunctions").describe_state_machine(stateMachineArn=machine)["status"]
    good = status == "ACTIVE"
    yield Check(
        "workflow", Status.OK if good else Status.FAILED, f"{status}", "" if good else "Deploy again."
    )
    with explained(f"read table {control}", "dynamodb:GetItem"):
        row = s.aws.client("dynamodb").get_item(TableName=control, Key={"key": {"S": "kill_switch"}})
    stopped = row.get("Item", {"value": {"BOOL": False}}).get("value", {}).get("BOOL") is not False
    remedy = "Take the row `kill_switch` out of the control table when the reason for it is gone."
    yield Check(
        "kill-switch",
        Status.FAILED if stopped else Status.OK,
        "everything is stopped" if stopped else "off",
        remedy if stopped else "",
    )


def approvers(s: Subject) -> Iterator[Check]:
    """Each approver confirms the mail subscription once; an unconfirmed one gets nothing."""
    topic = s.deployment().need("ApprovalTopicArn")
    with explained("list the approvers", "sns:ListSubscriptionsByTopic"):
        pages = s.aws.client("sns").get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
        found = [x for page in pages for x in page["Subscriptions"] if x["Protocol"].startswith("email")]
    waiting = [x["Endpoint"] for x in found if not str(x["SubscriptionArn"]).startswith("arn:")]
    if not found:
        remedy = "Name them in cdk.json (`approvers`) and deploy."
        yield Check("approvers", Status.FAILED, "nobody can be asked", remedy)
    elif waiting:
        remedy = "Each opens AWS's mail and confirms; deploy again to have it sent once more."
        yield Check("approvers", Status.FAILED, f"not confirmed: {', '.join(waiting)}", remedy)
    else:
        yield Check("approvers", Status.OK, ", ".join(x["Endpoint"] for x in found))


def cluster(s: Subject) -> Iterator[Check]:
    """HyperPod's own recovery, and whether newcomers are screened."""
    name = s.env.get(Env.CLUSTER) or s.deployment().need("ClusterName")
    with explained(f"describe cluster {name}", "sagemaker:DescribeCluster"):
        c = s.aws.client("sagemaker").describe_cluster(ClusterName=name)
    status = c["ClusterStatus"]
    remedy = "" if status == "InService" else "Wait, or look at it in the SageMaker console."
    yield Check("cluster", Status.FAILED if remedy else Status.OK, f"{name} is {status}", remedy)
    recovery = c.get("NodeRecovery", "Automatic")  # HyperPod's own default
    yield Check("node-recovery", Status.NOTE, f"NodeRecovery {recovery}: {RECOVERY.get(recovery, 'unknown')}")
    for group in c.get("InstanceGroups", ()):
        checks = group.get("OnStartDeepHealthChecks", ())
        text = f"{group['InstanceGroupName']}: {', '.join(checks) or 'none'}; {SCREENING[bool(checks)]}"
        yield Check("on-start-checks", Status.NOTE, f"OnStartDeepHealthChecks of {text}")


def telemetry(s: Subject) -> Iterator[Check]:
    """Advanced DCGM metrics in the workspace that confirm reads."""
    url = s.deployment().outputs.get("TelemetryUrl", "")
    if not url or url == "none":
        remedy = (
            "Install the HyperPod observability add-on with advanced GPU metrics, set telemetry_workspace in "
            "cdk.json, deploy; or leave it out on purpose with --skip telemetry."
        )
        yield Check("telemetry", Status.FAILED, "no Prometheus workspace is configured", remedy)
        return
    query = f'count by (__name__) ({{__name__=~"{"|".join(DCGM_METRICS)}"}})'
    present = _names(s.aws.prometheus(url, query).body)
    missing = [m for m in DCGM_METRICS if m not in present]
    if missing:
        remedy = "Switch on advanced GPU metrics in the HyperPod observability add-on."
        yield Check("telemetry", Status.FAILED, f"no series of {', '.join(missing)}", remedy)
    else:
        yield Check("telemetry", Status.OK, f"all {len(DCGM_METRICS)} DCGM metrics arrive")


PARTS: dict[str, tuple[Look, ...]] = {
    "job": (job,),
    "account": (credentials, quarantine, pipeline),
    "people": (approvers,),
    "cluster": (cluster, telemetry),
}


def examine(
    subject: Subject, parts: Iterable[str], skip: Iterable[str], say: Callable[[str], None]
) -> Iterator[Check]:
    """All checks of `parts`, in order; those in `skip` (by name) are shown as skipped."""
    left_out = set(skip)
    for look in (look for part in parts for look in PARTS[part]):
        name = look.__name__
        if name in left_out:
            yield Check(name, Status.SKIPPED, "left out on purpose")
            continue
        say(f"looking at {name.replace('_', ' ')}")
        try:
            found = list(look(subject))
        except CliError as e:
            found = [Check(name.replace("_", "-"), Status.FAILED, str(e), e.remedy)]
        for check in found:
            skipped = check.name in left_out
            yield Check(check.name, Status.SKIPPED, "left out on purpose") if skipped else check


def _names(answer: Mapping[str, Any]) -> frozenset[str]:
    try:
        return frozenset(str(series["metric"]["__name__"]) for series in answer["data"]["result"])
    except (KeyError, TypeError):
        return frozenset()
