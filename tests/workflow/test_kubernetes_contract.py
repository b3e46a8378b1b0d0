"""The fake Kubernetes behaves as the real API to its two kinds of clients: kubectl and the Python client.

The operator's acts are asserted twice: with the real kubectl where there is one (else again with the Python
client, so that no test is silently absent), and with the Python client that the handlers use.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import kubernetes
import pytest
import urllib3

from emulator.cloud import LocalCloud
from emulator.kubernetes import Change, KubernetesState
from tests.patience import PATIENCE_S, eventually


class Operator(Protocol):
    """What an operator does to nodes."""

    def cordon(self, node: str) -> None: ...
    def uncordon(self, node: str) -> None: ...
    def annotate(self, node: str, key: str, value: str) -> None: ...
    def drain(self, node: str) -> None: ...
    def node(self, node: str) -> dict[str, Any]: ...


class Kubectl:
    """The real kubectl."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self._kubeconfig), *arguments],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cordon(self, node: str) -> None:
        self.run("cordon", node)

    def uncordon(self, node: str) -> None:
        self.run("uncordon", node)

    def annotate(self, node: str, key: str, value: str) -> None:
        self.run("annotate", "node", node, f"{key}={value}")

    def drain(self, node: str) -> None:
        self.run("drain", node, "--force", "--timeout=20s")

    def node(self, node: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.run("get", "node", node, "-o", "json"))
        return answer


class PythonClient:
    """The kubernetes package, doing what kubectl does."""

    def __init__(self, api: kubernetes.client.CoreV1Api) -> None:
        self._api = api

    def cordon(self, node: str) -> None:
        self._api.patch_node(node, {"spec": {"unschedulable": True}})

    def uncordon(self, node: str) -> None:
        self._api.patch_node(node, {"spec": {"unschedulable": None}})

    def annotate(self, node: str, key: str, value: str) -> None:
        self._api.patch_node(node, {"metadata": {"annotations": {key: value}}})

    def drain(self, node: str) -> None:
        self.cordon(node)
        pods = self._api.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items
        for pod in pods:
            meta = kubernetes.client.V1ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace)
            body = kubernetes.client.V1Eviction(metadata=meta)
            self._api.create_namespaced_pod_eviction(pod.metadata.name, pod.metadata.namespace, body)
        eventually(
            lambda: not self._api.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items
        )

    def node(self, node: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._api.api_client.sanitize_for_serialization(self._api.read_node(node))
        return answer


@pytest.fixture(scope="module")
def api(cloud: LocalCloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.client.CoreV1Api]:
    path = cloud.kubernetes.kubeconfig(tmp_path_factory.mktemp("kube") / "config")
    with kubernetes.config.new_client_from_config(str(path)) as client:
        yield kubernetes.client.CoreV1Api(client)


@pytest.fixture(params=["kubectl", "python"])
def operator(request: pytest.FixtureRequest, cloud: LocalCloud, api: Any, tmp_path: Path) -> Operator:
    if request.param == "kubectl" and shutil.which("kubectl"):
        return Kubectl(cloud.kubernetes.kubeconfig(tmp_path / "config"))
    return PythonClient(api)


@pytest.fixture
def node(cloud: LocalCloud) -> Iterator[str]:
    """A node that is no HyperPod instance, so that scenarios never meet it."""
    name = "contract-node"
    cloud.kubernetes.add_node(name, labels={}, annotations={}, gpus=8, provider_id="contract")
    yield name
    cloud.kubernetes.remove_node(name)


@pytest.fixture
def state(cloud: LocalCloud) -> KubernetesState:
    return cloud.kubernetes


def test_cordon_sets_unschedulable_and_the_taint_and_uncordon_removes_both(
    operator: Operator, node: str, state: KubernetesState
) -> None:
    assert node in state.free_nodes(8)
    operator.cordon(node)
    assert operator.node(node)["spec"]["unschedulable"] is True
    assert [t["key"] for t in operator.node(node)["spec"]["taints"]] == ["node.kubernetes.io/unschedulable"]
    assert node not in state.free_nodes(8)
    operator.uncordon(node)
    assert not {"unschedulable", "taints"} & set(operator.node(node)["spec"])
    assert node in state.free_nodes(8)


def test_an_annotation_is_added_without_losing_others(operator: Operator, node: str) -> None:
    operator.annotate(node, "training.sdc/cordoned-by", "incident-1")
    operator.annotate(node, "training.sdc/cordoned-reason", "C1")
    annotations = operator.node(node)["metadata"]["annotations"]
    assert annotations["training.sdc/cordoned-by"] == "incident-1"
    assert annotations["training.sdc/cordoned-reason"] == "C1"


def test_drain_evicts_the_pods_of_that_node_only(
    operator: Operator, node: str, state: KubernetesState
) -> None:
    state.create_pod("contract-a", node=node)
    state.create_pod("contract-b", node="elsewhere")
    try:
        operator.drain(node)
        names = {name for _, name in state.pods}
        assert "contract-a" not in names
        assert "contract-b" in names
        assert operator.node(node)["spec"]["unschedulable"] is True
    finally:
        state.delete_pod("contract-b")


def test_an_evicted_pod_is_terminating_before_it_is_gone(
    api: kubernetes.client.CoreV1Api, node: str, state: KubernetesState
) -> None:
    seen: list[tuple[str, bool]] = []

    def watch(change: Change) -> None:
        if change.name == "contract-a":
            seen.append((change.action, "deletionTimestamp" in change.object["metadata"]))

    state.on_change(watch)
    state.create_pod("contract-a", node=node)
    meta = kubernetes.client.V1ObjectMeta(name="contract-a", namespace="default")
    api.create_namespaced_pod_eviction("contract-a", "default", kubernetes.client.V1Eviction(metadata=meta))
    eventually(lambda: len(seen) == 3)
    assert seen == [("ADDED", False), ("MODIFIED", True), ("DELETED", True)]
    assert ("default", "contract-a") not in state.pods


def test_a_disruption_budget_refuses_the_eviction(
    api: kubernetes.client.CoreV1Api, node: str, state: KubernetesState
) -> None:
    state.create_pod("contract-a", node=node)
    state.eviction_blocked.add("contract-a")
    meta = kubernetes.client.V1ObjectMeta(name="contract-a", namespace="default")
    try:
        with pytest.raises(kubernetes.client.ApiException) as refused:
            api.create_namespaced_pod_eviction(
                "contract-a", "default", kubernetes.client.V1Eviction(metadata=meta)
            )
        assert refused.value.status == 429
        assert ("default", "contract-a") in state.pods
    finally:
        state.eviction_blocked.clear()
        state.delete_pod("contract-a")


def test_a_write_with_an_old_resource_version_is_a_conflict(
    api: kubernetes.client.CoreV1Api, node: str
) -> None:
    old = api.read_node(node).metadata.resource_version
    api.patch_node(node, {"metadata": {"annotations": {"a": "1"}}})
    with pytest.raises(kubernetes.client.ApiException) as refused:
        api.patch_node(node, {"metadata": {"resourceVersion": old, "annotations": {"a": "2"}}})
    assert refused.value.status == 409
    assert api.read_node(node).metadata.annotations["a"] == "1"


def test_whoever_changes_unschedulable_owns_it(api: kubernetes.client.CoreV1Api, node: str) -> None:
    """The same value again changes nothing, so neither the owner."""

    def owners() -> list[str]:
        entries = api.read_node(node).metadata.managed_fields or []
        return [e.manager for e in entries if "f:unschedulable" in (e.fields_v1.get("f:spec") or {})]

    def cordon(on: bool, manager: str) -> list[str]:
        api.patch_node(node, {"spec": {"unschedulable": on or None}}, field_manager=manager)
        return owners()

    seen = [cordon(True, "ours"), cordon(True, "hers"), cordon(False, "hers"), cordon(True, "hers")]
    assert seen == [["ours"], ["ours"], [], ["hers"]]
    assert cordon(False, "hers") == []


def test_an_annotation_that_is_no_string_is_refused(api: kubernetes.client.CoreV1Api, node: str) -> None:
    with pytest.raises(kubernetes.client.ApiException) as refused:
        api.patch_node(node, {"metadata": {"annotations": {"a": 1}}})
    assert refused.value.status == 422


def test_pods_are_found_by_label_and_by_node(
    api: kubernetes.client.CoreV1Api, node: str, state: KubernetesState
) -> None:
    state.create_pod(
        "contract-a", node=node, labels={"training.sdc/job-uid": "u1"}, service_account="trainer"
    )
    state.create_pod("contract-b", node=node, labels={"training.sdc/job-uid": "u2"})
    found = api.list_namespaced_pod(
        "default", label_selector="training.sdc/job-uid=u1", field_selector=f"spec.nodeName={node}"
    )
    assert [p.metadata.name for p in found.items] == ["contract-a"]
    assert found.items[0].spec.service_account_name == "trainer"


def test_unknown_objects_are_404(api: kubernetes.client.CoreV1Api) -> None:
    for read in (lambda: api.read_node("nowhere"), lambda: api.read_namespaced_pod("nobody", "default")):
        with pytest.raises(kubernetes.client.ApiException) as refused:
            read()
        assert refused.value.status == 404


def test_a_node_that_vanishes_takes_its_pods_along(node: str, state: KubernetesState) -> None:
    seen: list[tuple[str, str]] = []
    state.on_change(lambda change: seen.append((change.action, change.name)))
    state.create_pod("contract-a", node=node)
    state.remove_node(node)
    eventually(lambda: ("DELETED", "contract-a") in seen)
    assert ("default", "contract-a") not in state.pods


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Bearer k8s-aws-v1.bm90IGEgdXJs"])
def test_a_request_without_a_valid_token_is_401(cloud: LocalCloud, token: str, tmp_path: Path) -> None:
    cloud.kubernetes.kubeconfig(tmp_path / "config")
    pool = urllib3.PoolManager(ca_certs=str(tmp_path / "config.ca.pem"))
    answer = pool.request("GET", f"{cloud.kubernetes.url}/api/v1/nodes", headers={"Authorization": token})
    pool.clear()
    assert answer.status == 401
    assert cloud.kubernetes.requests[-1].user == ""


def test_a_client_that_does_not_know_the_authority_is_refused(cloud: LocalCloud) -> None:
    pool = urllib3.PoolManager()
    with pytest.raises(urllib3.exceptions.MaxRetryError, match="certificate verify failed"):
        pool.request("GET", f"{cloud.kubernetes.url}/version", retries=0)
    pool.clear()
