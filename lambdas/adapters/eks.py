"""The cluster's Kubernetes API: HyperPod cluster -> EKS cluster -> endpoint, CA and a bearer token.

The token is a presigned STS GetCallerIdentity URL with the signed header `x-k8s-aws-id` (what
aws-iam-authenticator and `aws eks get-token` do); the API server accepts it for about 15 minutes.
"""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import boto3
import kubernetes.client as k8s
import urllib3
from botocore.signers import RequestSigner
from kubernetes.client.exceptions import ApiException

from ..domain.errors import ConflictError, RefusedError, ThrottledError, UnavailableError
from ..domain.times import stamp
from ..domain.world import KubeNode, KubePod
from .aws import client, translated

T = TypeVar("T")
TOKEN_SECONDS = 14 * 60
TIMEOUT = (5, 10)  # connect, read
DENIED = frozenset({"403", "422"})
POLICY = "training-sdc-cordoners"  # infra/eks_access/admission.yaml; the API server names it when it denies
FIELD_MANAGER = "training-sdc"  # under which the API server keeps what we set
MANAGER_BEFORE = "OpenAPI-Generator"  # of cordons by the version before: the client library's own name
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
REPLACE_VALUE = "UnschedulablePendingReplacement"  # on which HyperPod's auto recovery acts
HEALTH_VALUES = (REPLACE_VALUE, "UnschedulablePendingReboot")


class EksCluster:
    """Implements `ports.Kubernetes`."""

    def __init__(self, hyperpod_cluster: str) -> None:
        self._hyperpod = hyperpod_cluster
        self._api: k8s.ApiClient | None = None
        self._until = 0.0

    def node(self, name: str) -> KubeNode | None:
        found = self._call(
            f"read of node {name}", lambda c: _core(c).read_node(name, _request_timeout=TIMEOUT)
        )
        return _node(found) if found is not None else None

    def patch_node(self, node: KubeNode, *, unschedulable: bool, annotations: dict[str, str | None]) -> None:
        body = {
            "metadata": {"resourceVersion": node.resource_version, "annotations": annotations},
            "spec": {"unschedulable": unschedulable or None},
        }
        patched = self._call(
            f"patch of node {node.name}",
            lambda c: _core(c).patch_node(
                node.name, body, field_manager=FIELD_MANAGER, _request_timeout=TIMEOUT
            ),
        )
        if patched is None:
            raise RefusedError(f"node {node.name} is gone", "NotFound")

    def refuses_health_label(self, node: KubeNode) -> bool:
        """Ask with `dryRun=All`, which admission policies judge and nothing stores.

        A denial of a ValidatingAdmissionPolicy is a 422 that names it; a 403 is RBAC or a webhook. Either way
        the label is out of reach. Anything else, a server that could not answer included, proves nothing.
        """
        value = next(v for v in HEALTH_VALUES if node.labels.get(HEALTH_LABEL) != v)
        try:
            answer = self._call(
                f"dry run of the health label of {node.name}",
                lambda c: _core(c).patch_node(
                    node.name,
                    {"metadata": {"labels": {HEALTH_LABEL: value}}},
                    dry_run="All",
                    _request_timeout=TIMEOUT,
                ),
            )
        except RefusedError as e:
            # RBAC, a webhook or a quota may deny as well: only the policy's own denial proves the policy.
            if e.code in DENIED and POLICY in _body_of(e):
                return True
            raise
        if answer is None:
            raise RefusedError(f"node {node.name} is gone", "NotFound")
        return False

    def label_node(self, node: KubeNode, labels: dict[str, str]) -> None:
        """Conditional on the resource version read; the identity may set one label only."""
        body = {"metadata": {"resourceVersion": node.resource_version, "labels": labels}}
        patched = self._call(
            f"label of node {node.name}",
            lambda c: _core(c).patch_node(node.name, body, _request_timeout=TIMEOUT),
        )
        if patched is None:
            raise RefusedError(f"node {node.name} is gone", "InstanceIdNotFound")

    def pod(self, namespace: str, name: str) -> KubePod | None:
        found = self._call(
            f"read of pod {namespace}/{name}",
            lambda c: _core(c).read_namespaced_pod(name, namespace, _request_timeout=TIMEOUT),
        )
        return _pod(found) if found is not None else None

    def pods_on(self, node: str) -> tuple[KubePod, ...]:
        found = self._call(
            f"list of pods on {node}",
            lambda c: _core(c).list_pod_for_all_namespaces(
                field_selector=f"spec.nodeName={node}", _request_timeout=TIMEOUT
            ),
        )
        return tuple(_pod(p) for p in found.items) if found is not None else ()

    def pending_pods(self) -> tuple[KubePod, ...]:
        found = self._call(
            "list of pending pods",
            lambda c: _core(c).list_pod_for_all_namespaces(
                field_selector="status.phase=Pending,spec.nodeName=", _request_timeout=TIMEOUT
            ),
        )
        return tuple(_pod(p) for p in found.items) if found is not None else ()

    def cordoned(self) -> tuple[KubeNode, ...]:
        found = self._call(
            "list of cordoned nodes",
            lambda c: _core(c).list_node(field_selector="spec.unschedulable=true", _request_timeout=TIMEOUT),
        )
        return tuple(_node(n) for n in found.items if n.spec.unschedulable) if found is not None else ()

    def job_pods(self) -> tuple[KubePod, ...]:
        found = self._call(
            "list of the jobs' pods",
            lambda c: _core(c).list_pod_for_all_namespaces(
                label_selector="training.sdc/job-uid", _request_timeout=TIMEOUT
            ),
        )
        return tuple(_pod(p) for p in found.items) if found is not None else ()

    def evict(self, pod: KubePod) -> None:
        """Evict; a pod that is gone already is fine, a disruption budget in the way is tried again."""
        # The uid in the preconditions keeps a successor of the same name alive.
        body = k8s.V1Eviction(
            api_version="policy/v1",
            kind="Eviction",
            metadata=k8s.V1ObjectMeta(name=pod.name, namespace=pod.namespace),
            delete_options=k8s.V1DeleteOptions(preconditions=k8s.V1Preconditions(uid=pod.uid)),
        )
        self._call(
            f"eviction of {pod.namespace}/{pod.name}",
            lambda c: _core(c).create_namespaced_pod_eviction(
                pod.name, pod.namespace, body, _request_timeout=TIMEOUT
            ),
        )

    def _call(self, action: str, call: Callable[[k8s.ApiClient], T]) -> T | None:
        """Answer of one call, None for 404; other errors as ours."""
        try:
            return call(self._client())
        except ApiException as e:
            if e.status == 404:
                return None
            if e.status == 401:
                self._until = 0.0  # a fresh token next time
            raise _ours(action, e) from e
        except (urllib3.exceptions.HTTPError, OSError) as e:
            raise UnavailableError(f"{action}: no answer ({type(e).__name__})") from e

    def _client(self) -> k8s.ApiClient:
        if self._api is None or time.monotonic() >= self._until:
            self._api = _connect(self._hyperpod)
            self._until = time.monotonic() + TOKEN_SECONDS
        return self._api


def bearer_token(eks_cluster: str) -> str:
    """Presigned STS URL in the form that the EKS authenticator expects; signed for 60 seconds."""
    session = boto3.Session()
    sts = client("sts")
    region = sts.meta.region_name
    signer = RequestSigner(
        sts.meta.service_model.service_id, region, "sts", "v4", session.get_credentials(), session.events
    )
    suffix = "amazonaws.com" + ".cn" * (session.get_partition_for_region(region) == "aws-cn")
    request = {
        "method": "GET",
        "url": f"https://sts.{region}.{suffix}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": eks_cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(request, region_name=region, expires_in=60, operation_name="")
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def _connect(hyperpod_cluster: str) -> k8s.ApiClient:
    with translated(f"DescribeCluster {hyperpod_cluster}"):
        arn = client("sagemaker").describe_cluster(ClusterName=hyperpod_cluster)["Orchestrator"]["Eks"][
            "ClusterArn"
        ]
    name = arn.rsplit("/", 1)[-1]
    with translated(f"eks DescribeCluster {name}"):
        cluster = client("eks").describe_cluster(name=name)["cluster"]
    configuration = k8s.Configuration()
    configuration.host = cluster["endpoint"]
    configuration.ssl_ca_cert = _ca_file(base64.b64decode(cluster["certificateAuthority"]["data"]))
    configuration.api_key["authorization"] = "Bearer " + bearer_token(name)
    configuration.retries = False
    return k8s.ApiClient(configuration)


def _ca_file(pem: bytes) -> str:
    """The client library wants the CA as a file."""
    with tempfile.NamedTemporaryFile(suffix=".pem", delete=False) as file:
        file.write(pem)
    return str(Path(file.name))


def _core(api: k8s.ApiClient) -> Any:
    return k8s.CoreV1Api(api)


def _body_of(error: RefusedError) -> str:
    """What the API server said, in its own words."""
    body = getattr(error.__cause__, "body", None)
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")


def _ours(action: str, error: ApiException) -> Exception:
    text = f"{action}: HTTP {error.status} {error.reason}"
    if error.status == 409:
        return ConflictError(text)
    if error.status == 429:
        return ThrottledError(text)
    if error.status == 401 or error.status is None or error.status >= 500 or error.status == 0:
        return UnavailableError(text)
    return RefusedError(text, str(error.status))


def _node(node: Any) -> KubeNode:
    return KubeNode(
        name=node.metadata.name,
        uid=node.metadata.uid or "",
        resource_version=node.metadata.resource_version,
        unschedulable=bool(node.spec.unschedulable),
        annotations=dict(node.metadata.annotations or {}),
        labels=dict(node.metadata.labels or {}),
        set_by_us=_set_by_us(node.metadata.managed_fields or ()),
    )


def _set_by_us(entries: Any) -> bool:
    """Is `spec.unschedulable` owned by the pipeline alone? Nobody as its owner is a no.

    Whoever changes a field's value by an update owns it from then on, and alone; whoever applies the same
    value owns it too (Kubernetes, Server-Side Apply, "Field management").
    """
    owners = {
        entry.manager
        for entry in entries
        if "f:unschedulable" in ((entry.fields_v1 or {}).get("f:spec") or {})
    }
    return bool(owners) and owners <= {FIELD_MANAGER, MANAGER_BEFORE}


def _pod(pod: Any) -> KubePod:
    ended = pod.status is not None and pod.status.phase in ("Succeeded", "Failed")
    return KubePod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=pod.spec.node_name,
        labels=dict(pod.metadata.labels or {}),
        leaving=pod.metadata.deletion_timestamp is not None or ended,
        started_at=stamp(pod.status.start_time) if pod.status is not None and pod.status.start_time else None,
        service_account=pod.spec.service_account_name or "",
    )
