"""HyperPod's cluster API (botocore 1.44.8 shapes). BatchReplaceClusterNodes gets exactly one attempt.

It has no client token and answers HTTP 200 with `Failed[]`; a hung answer would be sent again by boto3's
default retries. botocore does not check instance ids, so this does.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError

from training_agent.contract import INSTANCE_ID_PATTERN

from ..domain.errors import OutcomeUnknownError, RefusedError, UnavailableError
from ..domain.times import stamp
from ..domain.world import ClusterFacts, ClusterNode, ReplaceAnswer
from .aws import client, translated

SAME_CLOCK = timedelta(seconds=5)  # moments of ours against HyperPod's


@functools.cache
def single_attempt_client() -> Any:
    """A client that never sends a request twice."""
    config = Config(connect_timeout=5, read_timeout=60, retries={"total_max_attempts": 1, "mode": "standard"})
    return boto3.client("sagemaker", config=config)


class HyperPod:
    """Implements `ports.Cluster` for one cluster."""

    def __init__(self, cluster_name: str) -> None:
        self._name = cluster_name

    def describe(self) -> ClusterFacts:
        with translated(f"DescribeCluster {self._name}"):
            answer = client("sagemaker").describe_cluster(ClusterName=self._name)
        return ClusterFacts(
            node_recovery=str(answer.get("NodeRecovery", "Automatic")),  # unknown is not harmless
            on_start_checks={
                g["InstanceGroupName"]: tuple(g.get("OnStartDeepHealthChecks", ()))
                for g in answer.get("InstanceGroups", ())
            },
            complete=frozenset(
                g["InstanceGroupName"]
                for g in answer.get("InstanceGroups", ())
                if isinstance(g.get("TargetCount"), int) and g.get("CurrentCount", -1) >= g["TargetCount"]
            ),
            karpenter=answer.get("AutoScaling", {}).get("AutoScalerType") == "Karpenter",
        )

    def nodes(self) -> tuple[ClusterNode, ...]:
        found: list[ClusterNode] = []
        page: dict[str, str] = {}
        while True:
            with translated(f"ListClusterNodes {self._name}"):
                answer = client("sagemaker").list_cluster_nodes(
                    ClusterName=self._name, MaxResults=100, **page
                )
            found += [
                ClusterNode(
                    instance_id=n["InstanceId"],
                    group=n["InstanceGroupName"],
                    status=n["InstanceStatus"]["Status"],
                    launch_time=stamp(n["LaunchTime"]),
                )
                for n in answer["ClusterNodeSummaries"]
            ]
            if not answer.get("NextToken"):
                return tuple(found)
            page = {"NextToken": answer["NextToken"]}

    def start_health_check(self, group: str, instance_id: str, checks: tuple[str, ...]) -> None:
        _check_id(instance_id)
        configuration = {
            "InstanceGroupName": group,
            "InstanceIds": [instance_id],
            "DeepHealthChecks": list(checks),
        }
        with translated(f"StartClusterHealthCheck of {instance_id}"):
            single_attempt_client().start_cluster_health_check(
                ClusterName=self._name, DeepHealthCheckConfigurations=[configuration]
            )

    def check_superseded(self, group: str, instance_id: str, asked_at: datetime) -> bool:
        """ListClusterOperations is weeks old and optional: where it is not there, nothing is known."""
        try:
            for operation in self._checks_since(asked_at - SAME_CLOCK):
                if self._covers(operation["OperationId"], group, instance_id):
                    return bool(operation["Status"] == "Superseded")  # the first after it was asked for: ours
        except RefusedError:
            return False
        return False

    def _checks_since(self, since: datetime) -> Iterator[dict[str, Any]]:
        """Deep health checks of the cluster, oldest first, all pages; whoever started them."""
        page: dict[str, str] = {}
        while True:
            with translated(f"ListClusterOperations {self._name}"):
                answer = client("sagemaker").list_cluster_operations(
                    ClusterName=self._name, Type="DeepHealthCheck", CreationTimeAfter=since,
                    SortBy="CreationTime", SortOrder="Ascending", MaxResults=100, **page,
                )  # fmt: skip
            yield from answer["ClusterOperationSummaries"]
            if not answer.get("NextToken"):
                return
            page = {"NextToken": answer["NextToken"]}

    def _covers(self, operation_id: str, group: str, instance_id: str) -> bool:
        """A configuration that lists no instances is about its whole group."""
        with translated(f"DescribeClusterOperation {operation_id}"):
            answer = client("sagemaker").describe_cluster_operation(
                ClusterName=self._name, OperationId=operation_id
            )
        return any(
            one.get("InstanceGroupName") == group and instance_id in (one.get("InstanceIds") or [instance_id])
            for one in answer.get("DeepHealthCheckDetails", ())
        )

    def replace(self, instance_id: str) -> ReplaceAnswer:
        _check_id(instance_id)
        action = f"BatchReplaceClusterNodes of {instance_id}"
        try:
            with translated(action):
                answer = _replace_once(self._name, instance_id)
        except UnavailableError as e:
            raise OutcomeUnknownError(str(e)) from e
        if instance_id in answer.get("Successful", ()):
            return ReplaceAnswer(accepted=True)
        for failed in answer.get("Failed", ()):
            if failed.get("NodeId") == instance_id:
                return ReplaceAnswer(False, str(failed.get("ErrorCode")), str(failed.get("Message", "")))
        raise OutcomeUnknownError(f"{action}: the answer names it neither as successful nor as failed")


def _replace_once(cluster: str, instance_id: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = single_attempt_client().batch_replace_cluster_nodes(
            ClusterName=cluster, NodeIds=[instance_id]
        )
    except (ConnectTimeoutError, EndpointConnectionError) as e:
        raise RefusedError(f"no connection: the request was never sent ({e})", "NotReached") from e
    return answer


def _check_id(instance_id: str) -> None:
    if re.fullmatch(INSTANCE_ID_PATTERN, instance_id) is None:
        raise RefusedError(f"{instance_id!r} is no instance id: nothing was called", "MalformedId")
