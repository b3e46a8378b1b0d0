"""The Kubernetes adapter: token, conditional patches, evictions, errors. No sockets."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
import urllib3
from kubernetes.client.exceptions import ApiException

from lambdas.adapters import eks
from lambdas.domain.errors import ConflictError, RefusedError, ThrottledError, UnavailableError
from lambdas.domain.world import KubeNode, KubePod

NODE = KubeNode("hyperpod-i-0a1b2c3d4e5f60001", "uid", "7", False, {}, {})
POD = KubePod("training", "llama-0", "pod-uid", NODE.name, {}, leaving=False)


class Api:
    """Stands where CoreV1Api stands: records calls, answers or raises."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args))
            self.options = options
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return call


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(answer: Any = None) -> tuple[eks.EksCluster, Api]:
        api = Api(answer)
        monkeypatch.setattr(eks, "_core", lambda _client: api)
        monkeypatch.setattr(eks, "_connect", lambda _name: object())
        return eks.EksCluster("demo"), api

    return make


@pytest.mark.parametrize(
    ("region", "host"),
    [("cn-north-1", "sts.cn-north-1.amazonaws.com.cn"), ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com")],
)
def test_the_token_names_the_host_of_its_partition(
    clients: None, monkeypatch: pytest.MonkeyPatch, region: str, host: str
) -> None:
    sts = boto3.client("sts", region_name=region)
    monkeypatch.setattr(eks, "client", lambda _service: sts)
    body = eks.bearer_token("demo-eks").partition(".")[2]
    url = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    assert urlsplit(url).netloc == host == urlsplit(sts.meta.endpoint_url).netloc


def test_the_token_is_a_presigned_url_bound_to_the_eks_cluster(clients: None) -> None:
    token = eks.bearer_token("demo-eks")
    prefix, _, body = token.partition(".")
    url = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    query = parse_qs(urlsplit(url).query)
    assert prefix == "k8s-aws-v1" and not token.endswith("=")
    assert urlsplit(url).netloc == "sts.us-east-1.amazonaws.com"
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"] and query["X-Amz-Expires"] == ["60"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(409, ConflictError), (429, ThrottledError), (500, UnavailableError), (401, UnavailableError),
     (403, RefusedError), (422, RefusedError)],
)  # fmt: skip
def test_a23_each_answer_of_the_api_server_has_its_class(cluster: Any, status: int, error: type) -> None:
    kubernetes, _ = cluster(ApiException(status=status))
    with pytest.raises(error):
        kubernetes.patch_node(NODE, unschedulable=True, annotations={})


def test_no_answer_is_unavailable(cluster: Any) -> None:
    kubernetes, _ = cluster(urllib3.exceptions.MaxRetryError(None, "/"))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        kubernetes.node(NODE.name)


def test_what_is_gone_is_none_and_an_eviction_of_it_is_done(cluster: Any) -> None:
    kubernetes, _ = cluster(ApiException(status=404))
    assert kubernetes.node(NODE.name) is None
    assert kubernetes.pod("training", "llama-0") is None
    kubernetes.evict(POD)
    with pytest.raises(RefusedError):
        kubernetes.patch_node(NODE, unschedulable=True, annotations={})


def test_a_patch_is_conditional_on_what_was_read_and_touches_nothing_else(cluster: Any) -> None:
    kubernetes, api = cluster(SimpleNamespace())
    kubernetes.patch_node(NODE, unschedulable=True, annotations={"a": "b"})
    kubernetes.patch_node(NODE, unschedulable=False, annotations={"a": None})
    bodies = [args[1] for _, args in api.calls]
    assert bodies == [
        {"metadata": {"resourceVersion": "7", "annotations": {"a": "b"}}, "spec": {"unschedulable": True}},
        {"metadata": {"resourceVersion": "7", "annotations": {"a": None}}, "spec": {"unschedulable": None}},
    ]


def test_the_api_server_is_told_who_cordons(cluster: Any) -> None:
    kubernetes, api = cluster(SimpleNamespace())
    kubernetes.patch_node(NODE, unschedulable=True, annotations={})
    assert api.options["field_manager"] == eks.FIELD_MANAGER


@pytest.mark.parametrize(
    ("owners", "ours"),
    [
        ((eks.FIELD_MANAGER,), True),
        ((eks.MANAGER_BEFORE,), True),  # cordoned by the version before
        (("kubectl-cordon",), False),  # uncordoned and cordoned again by hand, under our annotation
        ((eks.FIELD_MANAGER, "argocd"), False),  # somebody applies the same
        ((), False),
    ],
)
def test_whose_cordon_it_is_says_the_owner_of_the_field(
    cluster: Any, owners: tuple[str, ...], ours: bool
) -> None:
    kubelet = SimpleNamespace(manager="kubelet", fields_v1={"f:status": {}, "f:spec": {"f:providerID": {}}})
    fields = {"f:spec": {"f:unschedulable": {}}}
    entries = [kubelet, *(SimpleNamespace(manager=o, fields_v1=fields) for o in owners)]
    meta = SimpleNamespace(
        name="n", uid="u", resource_version="1", labels={}, annotations={}, managed_fields=entries
    )
    kubernetes, _ = cluster(SimpleNamespace(metadata=meta, spec=SimpleNamespace(unschedulable=True)))
    node = kubernetes.node("n")
    assert node is not None and node.set_by_us is ours


def test_an_eviction_spares_a_successor_of_the_same_name(cluster: Any) -> None:
    kubernetes, api = cluster(SimpleNamespace())
    kubernetes.evict(POD)
    ((name, (pod, namespace, body)),) = api.calls
    assert (name, pod, namespace) == ("create_namespaced_pod_eviction", "llama-0", "training")
    assert body.delete_options.preconditions.uid == "pod-uid"


def test_a_refused_token_is_made_anew(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kubernetes, _ = cluster(ApiException(status=401))
    made = []
    monkeypatch.setattr(eks, "_connect", lambda name: made.append(name) or object())
    for _ in range(2):
        with pytest.raises(UnavailableError):
            kubernetes.node(NODE.name)
    assert len(made) == 2


def test_cordoned_nodes_and_the_jobs_pods_are_found_with_their_start(cluster: Any) -> None:
    meta = SimpleNamespace(
        name="n", namespace="training", uid="u", resource_version="1", labels={}, annotations={},
        deletion_timestamp=None,
    )  # fmt: skip
    meta.managed_fields = None
    node = SimpleNamespace(metadata=meta, spec=SimpleNamespace(unschedulable=True))
    kubernetes, _ = cluster(SimpleNamespace(items=[node]))
    assert [n.name for n in kubernetes.cordoned()] == ["n"]
    began = datetime(2026, 1, 1, tzinfo=timezone.utc)
    status = SimpleNamespace(phase="Running", start_time=began)
    pod = SimpleNamespace(
        metadata=meta, spec=SimpleNamespace(node_name=None, service_account_name=None), status=status
    )
    kubernetes, _ = cluster(SimpleNamespace(items=[pod]))
    assert kubernetes.job_pods()[0].started_at == "2026-01-01T00:00:00.000000Z"
    assert kubernetes.pending_pods()[0].node is None


def test_the_label_is_patched_under_the_version_that_was_read(cluster: Any) -> None:
    kubernetes, api = cluster(object())
    kubernetes.label_node(NODE, {"a": "b"})
    ((name, (target, body)),) = api.calls
    assert (name, target) == ("patch_node", NODE.name)
    assert body == {"metadata": {"resourceVersion": "7", "labels": {"a": "b"}}}
    gone, _ = cluster(ApiException(status=404))
    with pytest.raises(RefusedError):
        gone.label_node(NODE, {"a": "b"})


def denied(status: int, by: str = "training-sdc-cordoners") -> ApiException:
    error = ApiException(status=status)
    error.body = f'{{"message": "ValidatingAdmissionPolicy {by} denied request"}}'
    return error


def test_the_policy_of_the_manifest_is_the_one_that_has_to_deny() -> None:
    manifest = Path(__file__).parents[3] / "infra/eks_access/admission.yaml"
    assert f"name: {eks.POLICY}\n" in manifest.read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [422, 403])
def test_a_denial_by_anything_but_the_policy_proves_nothing(cluster: Any, status: int) -> None:
    for error in (denied(status, by="another-policy"), ApiException(status=status)):
        kubernetes, _ = cluster(error)
        with pytest.raises(RefusedError):
            kubernetes.refuses_health_label(NODE)


@pytest.mark.parametrize("status", [422, 403])
def test_a_denied_dry_run_of_the_health_label_is_what_the_pipeline_wants(cluster: Any, status: int) -> None:
    kubernetes, api = cluster(denied(status))
    assert kubernetes.refuses_health_label(NODE)
    ((name, (target, body)),) = api.calls
    assert (name, target, api.options["dry_run"]) == ("patch_node", NODE.name, "All")
    assert body == {"metadata": {"labels": {eks.HEALTH_LABEL: eks.REPLACE_VALUE}}}


def test_a_dry_run_that_passes_is_no_denial(cluster: Any) -> None:
    assert not cluster(object())[0].refuses_health_label(NODE)


def test_a_node_that_carries_the_label_already_is_asked_about_another_value(cluster: Any) -> None:
    kubernetes, api = cluster(denied(422))
    kubernetes.refuses_health_label(replace(NODE, labels={eks.HEALTH_LABEL: eks.REPLACE_VALUE}))
    assert api.calls[0][1][1] == {"metadata": {"labels": {eks.HEALTH_LABEL: "UnschedulablePendingReboot"}}}


@pytest.mark.parametrize(
    ("status", "error"), [(400, RefusedError), (404, RefusedError), (500, UnavailableError)]
)
def test_a_dry_run_without_a_verdict_proves_nothing(cluster: Any, status: int, error: type) -> None:
    """400: a webhook that knows no dry run; 404: the node is gone."""
    kubernetes, _ = cluster(ApiException(status=status))
    with pytest.raises(error):
        kubernetes.refuses_health_label(NODE)
