"""HyperPod's cluster API behind moto's SageMaker endpoint. In: signed requests. Out: responses of AWS's
shape.

moto has a few of these operations, with other shapes; all that the pipeline calls are replaced. Requests
and responses are validated against botocore's own model, so that neither the handlers nor this fake can
drift from the API. Like AWS, unknown clusters are ResourceNotFound, and batch calls answer 200 with
`Failed[]`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator
from moto.core.responses import ActionResult
from moto.sagemaker.responses import SageMakerResponse

from training_agent.contract import INSTANCE_ID_PATTERN

from .api_error import ApiError
from .hyperpod import HyperPod, Instance, Operation, Request, Status

log = logging.getLogger(__name__)
Parameters = dict[str, Any]
BUSY = {Status.PENDING, Status.SHUTTING_DOWN, Status.DEEP_CHECK}
_clusters: dict[str, HyperPod] = {}  # the clusters that are up in this process


class ShapeError(AssertionError):
    """This fake built a response that the AWS model does not know: a fault of the fake, not of the caller."""


def install(cluster: HyperPod) -> None:
    """Serve `cluster`; the operations are put into moto once, however often this is called."""
    _clusters[cluster.name] = cluster
    for operation, answer in OPERATIONS.items():
        setattr(SageMakerResponse, _snake(operation), _endpoint(operation, answer))


def uninstall(cluster: HyperPod) -> None:
    """Forget the cluster; calls that name it are ResourceNotFound from now on."""
    _clusters.pop(cluster.name, None)


@cache
def _model(operation: str) -> Any:
    return botocore.session.get_session().get_service_model("sagemaker").operation_model(operation)


def _endpoint(operation: str, answer: Callable[[HyperPod, Parameters], Parameters]) -> Any:
    def respond(self: Any) -> ActionResult:
        parameters = json.loads(self.body) if self.body else {}
        fault = ParamValidator().validate(parameters, _model(operation).input_shape)
        cluster = _clusters.get(str(parameters.get("ClusterName")).split("/")[-1]) or next(
            (c for c in _clusters.values() if c.arn == parameters.get("ClusterName")), None
        )
        if cluster is not None:
            cluster.requests.append(Request(datetime.now(timezone.utc), operation, parameters))
        if fault.has_errors():
            raise ApiError("ValidationException", fault.generate_report())
        if cluster is None:
            raise ApiError("ResourceNotFound", f"Cluster {parameters['ClusterName']} not found")
        with cluster.lock:
            for refusal in cluster.refusals:
                if refusal[0] == operation:
                    cluster.refusals.remove(refusal)
                    raise ApiError(refusal[1], f"{operation}: refused by the local cloud's test switch")
            result = answer(cluster, parameters)
        try:
            check_shape(operation, result)
        except ShapeError:
            log.exception("the fake HyperPod would have answered what AWS never does")
            raise
        return ActionResult(result)

    return respond


def check_shape(operation: str, result: Parameters) -> None:
    """Compare a response with AWS's model, unknown members included.

    Raises:
        ShapeError: names operation and member.
    """
    shape = _model(operation).output_shape
    fault = ParamValidator().validate(result, shape)
    report = fault.generate_report() if fault.has_errors() else ""
    unknown = set(result) - set(shape.members)
    if report or unknown:
        raise ShapeError(f"{operation}: {report} unknown members: {sorted(unknown)}")


def _describe_cluster(c: HyperPod, _: Parameters) -> Parameters:
    running = sum(i.status is not Status.PENDING for i in c.instances.values())
    group = {
        "InstanceGroupName": c.group,
        "InstanceType": c.instance_type,
        "CurrentCount": running,
        "TargetCount": c.target_count,
        "ThreadsPerCore": 1,
        "ExecutionRole": "arn:aws:iam::123456789012:role/hyperpod-node",
        "OnStartDeepHealthChecks": c.on_start_deep_checks,
        "Status": "InService",
    }
    return {
        "ClusterArn": c.arn,
        "ClusterName": c.name,
        "ClusterStatus": "InService",
        "CreationTime": c.created,
        "InstanceGroups": [group],
        "Orchestrator": {"Eks": {"ClusterArn": c.eks_arn}},
        "NodeRecovery": c.node_recovery,
        "NodeProvisioningMode": "Continuous",
    }


def _summary(i: Instance) -> Parameters:
    return {
        "InstanceGroupName": i.group,
        "InstanceId": i.instance_id,
        "InstanceType": i.instance_type,
        "LaunchTime": i.launch_time,
        "InstanceStatus": {"Status": i.status.value, "Message": ""},
        "PrivateDnsHostname": f"ip-10-1-0-{i.number + 1}.ec2.internal",
    }


def _list_nodes(c: HyperPod, p: Parameters) -> Parameters:
    wanted = p.get("InstanceGroupNameContains", "")
    found = [i for i in sorted(c.instances.values(), key=lambda i: i.number) if wanted in i.group]
    page, token = _page(found, p, default=10)
    rows = [
        _summary(i) | ({"NodeLogicalId": i.logical_id} if p.get("IncludeNodeLogicalIds") else {})
        for i in page
    ]
    return {"ClusterNodeSummaries": rows} | token


def _describe_node(c: HyperPod, p: Parameters) -> Parameters:
    if "NodeId" not in p and "NodeLogicalId" not in p:
        raise ApiError("ValidationException", "Either NodeId or NodeLogicalId must be given")
    for i in c.instances.values():
        if i.instance_id == p.get("NodeId") or i.logical_id == p.get("NodeLogicalId"):
            placement = {"AvailabilityZone": "us-east-1a", "AvailabilityZoneId": "use1-az1"}
            details = {"NodeLogicalId": i.logical_id, "ThreadsPerCore": 1, "Placement": placement}
            return {"NodeDetails": _summary(i) | details | {"PrivatePrimaryIp": f"10.1.0.{i.number + 1}"}}
    raise ApiError("ResourceNotFound", f"Instance {p.get('NodeId') or p['NodeLogicalId']} not found")


def _start_health_check(c: HyperPod, p: Parameters) -> Parameters:
    ids: list[str] = []
    for configuration in p["DeepHealthCheckConfigurations"]:
        group = configuration["InstanceGroupName"]
        members = [i.instance_id for i in c.instances.values() if i.group == group]
        if not members:
            raise ApiError("ValidationException", f"Instance group {group} does not exist")
        asked = configuration.get("InstanceIds") or members
        if missing := sorted(set(asked) - set(members)):
            raise ApiError("ValidationException", f"Instances {missing} are not in group {group}")
        ids += asked
    c.start_deep_check(ids, p["DeepHealthCheckConfigurations"])
    return {"ClusterArn": c.arn}


def _operation(c: HyperPod, o: Operation) -> Parameters:
    return {
        "OperationId": o.operation_id,
        "ClusterArn": c.arn,
        "Type": o.kind,
        "Status": o.status,
        "CreationTime": o.created,
    }


def _list_operations(c: HyperPod, p: Parameters) -> Parameters:
    found = [
        o
        for o in c.operations
        if p.get("Type") in (None, o.kind)
        and p.get("Status") in (None, o.status)
        and ("CreationTimeAfter" not in p or o.created.timestamp() > float(p["CreationTimeAfter"]))
    ]
    if p.get("SortOrder") != "Ascending":
        found.reverse()
    page, token = _page(found, p, default=100)
    return {"ClusterOperationSummaries": [_operation(c, o) for o in page]} | token


def _describe_operation(c: HyperPod, p: Parameters) -> Parameters:
    for o in c.operations:
        if o.operation_id == p["OperationId"]:
            return _operation(c, o) | {"DeepHealthCheckDetails": o.details}
    raise ApiError("ResourceNotFound", f"Operation {p['OperationId']} not found")


def _batch_replace(c: HyperPod, p: Parameters) -> Parameters:
    ids = p.get("NodeIds") or []
    if not ids or len(ids) > 25 or p.get("NodeLogicalIds"):
        raise ApiError("ValidationException", "This cluster takes 1 to 25 NodeIds and no NodeLogicalIds")
    done: list[str] = []
    failed: list[Parameters] = []
    for node_id in ids:
        if not re.match(INSTANCE_ID_PATTERN, node_id):
            raise ApiError("ValidationException", f"NodeIds: {node_id!r} does not match the pattern")
        instance = c.instances.get(node_id)
        if instance is None:
            failed.append(
                _failure(node_id, "InstanceIdNotFound", "The instance does not exist in the cluster")
            )
        elif node_id in done:
            failed.append(_failure(node_id, "InstanceIdInUse", "The instance is named twice"))
        elif instance.status in BUSY:
            failed.append(
                _failure(node_id, "InvalidInstanceStatus", f"The instance is {instance.status.value}")
            )
        else:
            c.replace(node_id)
            done.append(node_id)
    return {k: v for k, v in (("Successful", done), ("Failed", failed)) if v}  # empty lists break the model


def _failure(node_id: str, code: str, message: str) -> Parameters:
    return {"NodeId": node_id, "ErrorCode": code, "Message": message}


def _page(found: list[Any], p: Parameters, *, default: int) -> tuple[list[Any], Parameters]:
    size, start = int(p.get("MaxResults", default)), int(p.get("NextToken", 0))
    more = start + size < len(found)
    return found[start : start + size], {"NextToken": str(start + size)} if more else {}


def _snake(operation: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


OPERATIONS: dict[str, Callable[[HyperPod, Parameters], Parameters]] = {
    "DescribeCluster": _describe_cluster,
    "ListClusterNodes": _list_nodes,
    "DescribeClusterNode": _describe_node,
    "StartClusterHealthCheck": _start_health_check,
    "ListClusterOperations": _list_operations,
    "DescribeClusterOperation": _describe_operation,
    "BatchReplaceClusterNodes": _batch_replace,
}
