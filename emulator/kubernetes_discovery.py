"""What the fake Kubernetes says about itself: enough for kubectl to find nodes, pods, evictions. Data."""

from __future__ import annotations

from typing import Any

from .kubernetes_objects import Object


def _resource(name: str, kind: str, *, namespaced: bool, verbs: str, **more: Any) -> Object:
    singular = kind.lower() if "/" not in name else ""
    base = {"name": name, "singularName": singular, "namespaced": namespaced, "kind": kind}
    return base | {"verbs": verbs.split()} | more


_EVICTION = _resource(
    "pods/eviction", "Eviction", namespaced=True, verbs="create", group="policy", version="v1"
)
DISCOVERY: dict[str, Object] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource("nodes", "Node", namespaced=False, verbs="get list patch update", shortNames=["no"]),
            _resource("pods", "Pod", namespaced=True, verbs="get list delete", shortNames=["po"]),
            _EVICTION,
        ],
    },
}
