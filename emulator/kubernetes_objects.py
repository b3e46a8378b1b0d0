"""Kubernetes objects as JSON, as the kubelet and the scheduler leave them. Pure; used by `kubernetes`."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timezone
from typing import Any

Object = dict[str, Any]
_UNSCHEDULABLE: Object = {"f:spec": {"f:unschedulable": {}}}
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"


def now() -> str:
    """UTC in the API's format."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(
    name: str, labels: dict[str, str], annotations: dict[str, str], gpus: int, provider_id: str
) -> Object:
    """A v1 Node as a kubelet registers it."""
    capacity = {"cpu": "192", "memory": "2097152Mi", "pods": "100", "nvidia.com/gpu": str(gpus)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
    info = dict.fromkeys(("bootID", "kubeProxyVersion", "machineID", "systemUUID"), "")
    info |= {
        "kubeletVersion": "v1.32.0",
        "containerRuntimeVersion": "containerd://1.7",
        "kernelVersion": "6.1",
    }
    info |= {"osImage": "Amazon Linux 2023", "architecture": "amd64", "operatingSystem": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "labels": {"kubernetes.io/hostname": name, **labels},
            "annotations": dict(annotations),
        },
        "spec": {"providerID": provider_id},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": [ready | {"lastHeartbeatTime": now(), "lastTransitionTime": now()}],
            "addresses": [{"type": "Hostname", "address": name}],
            "nodeInfo": info,
        },
    }


def pod_object(
    name: str, namespace: str, labels: dict[str, str], account: str, gpus: int, owner: tuple[str, str]
) -> Object:
    """A v1 Pod without a place."""
    controller = {"apiVersion": "kubeflow.org/v1", "kind": owner[0], "name": owner[1], "controller": True}
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "labels": dict(labels),
            "annotations": {},
            "ownerReferences": [controller | {"uid": f"{owner[0]}-{owner[1]}"}],
        },
        "spec": {
            "serviceAccountName": account,
            "serviceAccount": account,
            "containers": [{"name": "train", "image": "train:local", "resources": resources if gpus else {}}],
        },
        "status": {"phase": "Pending"},
    }


def place(pod: Object, node: str) -> None:
    """Bind a pod; it runs at once."""
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": now()}


def gpus_asked(pod: Object) -> int:
    """GPUs that a pod's limits ask for."""
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


def own_unschedulable(before: Object, after: Object, manager: str) -> None:
    """Keep managedFields as the API server does for an update, for this one field: who changes it owns it."""
    entries = [dict(e) for e in before["metadata"].get("managedFields", [])]
    if bool(before["spec"].get("unschedulable")) is not bool(after["spec"].get("unschedulable")):
        entries = [e for e in entries if e["fieldsV1"] != _UNSCHEDULABLE]
        if after["spec"].get("unschedulable"):
            entry = {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": now()}
            entries.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": _UNSCHEDULABLE})
    after["metadata"]["managedFields"] = entries


def follow_unschedulable(node: Object) -> None:
    """Make the taint say what spec.unschedulable says, as the node lifecycle controller does."""
    spec = node["spec"]
    taints = [t for t in spec.get("taints") or [] if t["key"] != UNSCHEDULABLE_TAINT]
    if spec.get("unschedulable"):
        taints.append({"key": UNSCHEDULABLE_TAINT, "effect": "NoSchedule", "timeAdded": now()})
    else:
        spec.pop("unschedulable", None)
    if taints:
        spec["taints"] = taints
    else:
        spec.pop("taints", None)


_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def check_event(event: object, namespace: str) -> Object:
    """A v1 Event that the API server would take into this namespace.

    Raises:
        ValueError: it would not; the text says why.
    """
    if not isinstance(event, dict) or event.get("kind") != "Event" or event.get("apiVersion") != "v1":
        raise ValueError("the body is no v1 Event")
    meta, about = event.get("metadata") or {}, event.get("involvedObject") or {}
    name = meta.get("name", "")
    if len(name) > 253 or not _DNS_SUBDOMAIN.fullmatch(name):
        raise ValueError(f"metadata.name: Invalid value: {name!r}: a lowercase RFC 1123 subdomain")
    if meta.get("namespace", namespace) != namespace or about.get("namespace") != namespace:
        raise ValueError("involvedObject.namespace: does not match event.namespace")
    for field in ("firstTimestamp", "lastTimestamp"):
        if field in event:
            datetime.strptime(event[field], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return event
