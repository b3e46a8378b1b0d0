"""The fake cluster and its API's answers, validated against botocore's model, without a server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from emulator import hyperpod_api
from emulator.api_error import ApiError
from emulator.hyperpod import DEEP_CHECK_LABEL, HEALTH_LABEL, HyperPod
from emulator.hyperpod_api import ShapeError, check_shape
from emulator.kubernetes import KubernetesState
from emulator.timers import Timers
from tests.patience import eventually
from training_agent.contract import instance_id_of

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def cluster() -> Iterator[HyperPod]:
    timers = Timers(1 / 50_000)  # a deep check takes 0.1 s
    kubernetes = KubernetesState(timers)
    made = HyperPod(
        timers,
        kubernetes,
        name="c",
        eks_name="c-eks",
        size=12,
        gpus_per_node=2,
        instance_type="ml.p5.48xlarge",
    )
    yield made
    kubernetes.close()
    timers.close()


@pytest.fixture
def call(cluster: HyperPod) -> Iterator[Call]:
    """An operation as moto calls it."""
    hyperpod_api.install(cluster)

    def run(operation: str, **parameters: Any) -> dict[str, Any]:
        endpoint = hyperpod_api._endpoint(operation, hyperpod_api.OPERATIONS[operation])
        answer = endpoint(SimpleNamespace(body=json.dumps({"ClusterName": "c"} | parameters)))
        result: dict[str, Any] = answer.result
        return result

    yield run
    hyperpod_api.uninstall(cluster)


def kubernetes_of(cluster: HyperPod) -> KubernetesState:
    return cluster._kubernetes


def test_ids_are_hyperpods_and_follow_from_the_seed(cluster: HyperPod) -> None:
    ids = list(cluster.nodes())
    assert len(set(ids)) == 12
    assert all(instance_id_of(f"hyperpod-{i}") == i for i in ids)
    assert {f"hyperpod-{i}" for i in ids} == set(kubernetes_of(cluster).nodes)
    assert cluster.eks_arn.endswith("cluster/c-eks")
    assert not cluster.arn.endswith("/c")


def test_listing_comes_in_pages(call: Call) -> None:
    first = call("ListClusterNodes", MaxResults=8)
    second = call("ListClusterNodes", MaxResults=8, NextToken=first["NextToken"])
    assert (len(first["ClusterNodeSummaries"]), len(second["ClusterNodeSummaries"])) == (8, 4)
    assert "NextToken" not in second
    assert "NodeLogicalId" not in first["ClusterNodeSummaries"][0]
    assert "NodeLogicalId" in call("ListClusterNodes", IncludeNodeLogicalIds=True)["ClusterNodeSummaries"][0]
    assert call("ListClusterNodes", InstanceGroupNameContains="none")["ClusterNodeSummaries"] == []


def test_the_cluster_has_recovery_off_and_names_its_eks_cluster(call: Call, cluster: HyperPod) -> None:
    described = call("DescribeCluster")
    assert described["NodeRecovery"] == "None"
    assert described["Orchestrator"]["Eks"]["ClusterArn"] == cluster.eks_arn
    assert call("DescribeCluster", ClusterName=cluster.arn)["ClusterName"] == "c"


def test_unknown_clusters_and_nodes_are_resource_not_found(call: Call) -> None:
    for operation, parameters in (
        ("DescribeCluster", {"ClusterName": "elsewhere"}),
        ("DescribeClusterNode", {"NodeId": "i-0123456789abcdef0"}),
        ("DescribeClusterOperation", {"OperationId": "abcdefghijkl"}),
    ):
        with pytest.raises(ApiError) as refused:
            call(operation, **parameters)
        assert refused.value.code == "ResourceNotFound"


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("BatchReplaceClusterNodes", {}),
        ("BatchReplaceClusterNodes", {"NodeIds": "i-0123456789abcdef0"}),
        ("BatchReplaceClusterNodes", {"NodeIds": ["not-an-id"]}),
        ("StartClusterHealthCheck", {}),
        ("StartClusterHealthCheck", {"DeepHealthCheckConfigurations": [{"InstanceGroupName": "workers"}]}),
        (
            "StartClusterHealthCheck",
            {"DeepHealthCheckConfigurations": [
                {"InstanceGroupName": "none", "DeepHealthChecks": ["InstanceStress"]}
            ]},
        ),
        ("ListClusterNodes", {"MaxResults": "many"}),
        ("DescribeClusterNode", {}),
    ],
)  # fmt: skip
def test_requests_that_the_model_refuses_are_validation_errors(
    call: Call, cluster: HyperPod, operation: str, parameters: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        call(operation, **parameters)
    assert refused.value.code == "ValidationException"
    assert cluster.requests[-1].operation == operation  # logged all the same


def test_a_response_that_aws_would_not_give_is_a_fault_of_the_fake() -> None:
    with pytest.raises(ShapeError, match="Successful"):
        check_shape("BatchReplaceClusterNodes", {"Successful": []})
    with pytest.raises(ShapeError, match="Extra"):
        check_shape("StartClusterHealthCheck", {"ClusterArn": "arn", "Extra": 1})


def test_a_replacement_gives_another_instance_node_and_gpus(call: Call, cluster: HyperPod) -> None:
    suspect = list(cluster.nodes())[3]
    old_node = kubernetes_of(cluster).nodes[f"hyperpod-{suspect}"]
    assert call("BatchReplaceClusterNodes", NodeIds=[suspect]) == {"Successful": [suspect]}
    assert cluster.nodes()[suspect] == "ShuttingDown"
    eventually(lambda: bool(cluster.replacements()))
    old, new = cluster.replacements()[0]
    assert old == suspect
    assert old not in cluster.nodes()
    assert f"hyperpod-{old}" not in kubernetes_of(cluster).nodes
    eventually(lambda: cluster.nodes()[new] == "Running")
    new_node = kubernetes_of(cluster).nodes[f"hyperpod-{new}"]
    uuids = "training.sdc.emulator/gpu-uuids"
    assert new_node["metadata"]["annotations"][uuids] != old_node["metadata"]["annotations"][uuids]
    assert list(cluster.nodes()).index(new) == 3


def test_failed_ids_come_back_with_their_code_beside_the_successful_ones(
    call: Call, cluster: HyperPod
) -> None:
    good, busy = list(cluster.nodes())[:2]
    call("BatchReplaceClusterNodes", NodeIds=[busy])
    answer = call("BatchReplaceClusterNodes", NodeIds=[good, busy, "i-0123456789abcdef0", good])
    assert answer["Successful"] == [good]
    assert [(f["NodeId"], f["ErrorCode"]) for f in answer["Failed"]] == [
        (busy, "InvalidInstanceStatus"),
        ("i-0123456789abcdef0", "InstanceIdNotFound"),
        (good, "InstanceIdInUse"),
    ]


@pytest.mark.parametrize(
    ("verdict", "label", "health"),
    [("pass", "Passed", "Schedulable"), ("fail", "Failed", "UnschedulablePendingReplacement")],
)
def test_a_deep_check_sets_status_and_labels_as_hyperpod_does(
    call: Call, cluster: HyperPod, verdict: str, label: str, health: str
) -> None:
    node_id = next(iter(cluster.nodes()))
    cluster.set_deep_check(verdict, node_id)
    configuration = {
        "InstanceGroupName": "workers",
        "InstanceIds": [node_id],
        "DeepHealthChecks": ["InstanceStress"],
    }
    call("StartClusterHealthCheck", DeepHealthCheckConfigurations=[configuration])
    eventually(lambda: cluster.nodes()[node_id] == "DeepHealthCheckInProgress")
    eventually(lambda: cluster.nodes()[node_id] == "Running")
    labels = kubernetes_of(cluster).nodes[f"hyperpod-{node_id}"]["metadata"]["labels"]
    assert (labels[DEEP_CHECK_LABEL], labels[HEALTH_LABEL]) == (label, health)
    (operation,) = call("ListClusterOperations", Type="DeepHealthCheck")["ClusterOperationSummaries"]
    assert operation["Status"] == "Done"
    details = call("DescribeClusterOperation", OperationId=operation["OperationId"])
    assert details["DeepHealthCheckDetails"] == [configuration]
    assert call("ListClusterOperations", Status="InProgress")["ClusterOperationSummaries"] == []


def test_a_stuck_check_stays_in_progress(call: Call, cluster: HyperPod) -> None:
    node_id = next(iter(cluster.nodes()))
    cluster.set_deep_check("stuck")
    call(
        "StartClusterHealthCheck",
        DeepHealthCheckConfigurations=[
            {"InstanceGroupName": "workers", "InstanceIds": [node_id], "DeepHealthChecks": ["InstanceStress"]}
        ],
    )
    eventually(lambda: cluster.nodes()[node_id] == "DeepHealthCheckInProgress")
    time.sleep(0.3)  # three times what a check takes here
    assert cluster.nodes()[node_id] == "DeepHealthCheckInProgress"
    assert call("ListClusterOperations")["ClusterOperationSummaries"][0]["Status"] == "InProgress"


def test_the_test_switch_refuses_exactly_one_call(call: Call, cluster: HyperPod) -> None:
    cluster.refuse_next("DescribeCluster", "ThrottlingException")
    with pytest.raises(ApiError) as refused:
        call("DescribeCluster")
    assert refused.value.code == "ThrottlingException"
    assert call("DescribeCluster")["ClusterName"] == "c"
