"""Changes of a node as the pipeline sends them, and as somebody who stole its identity might.

In: nothing. Out: nodes before, PATCH bodies of the adapter, forged changes with the reason of their denial.
Used by `test_admission` (the policy alone) and `test_admission_over_http` (through the API server).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import kubernetes.client as k8s
import yaml

from infra.bundling import ROOT
from lambdas.adapters import eks
from lambdas.domain.world import KubeNode
from lambdas.steps.effects import CORDONED_AT, CORDONED_BY, CORDONED_REASON

FOLDER = ROOT / "infra" / "eks_access"
HEALTH = "sagemaker.amazonaws.com/node-health-status"
BY, REASON, AT = CORDONED_BY, CORDONED_REASON, CORDONED_AT
Json = dict[str, Any]


def documents(name: str) -> list[Json]:
    return [item for item in yaml.safe_load_all((FOLDER / name).read_text()) if item]


def node(**spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "hyperpod-i-0123456789abcdef0",
            "labels": {HEALTH: "Schedulable", "kubernetes.io/os": "linux"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"providerID": "aws:///use1-az1/i-0123456789abcdef0", **spec},
    }


def cordoned() -> Json:
    made = node(unschedulable=True)
    made["metadata"]["annotations"] |= {BY: "inc-1", REASON: "C1", AT: "2026-11-30T00:00:00Z"}
    return made


def merged(value: Any, patch: Any) -> Any:
    """RFC 7386, which is what the API server does with the pipeline's patches of maps and scalars."""
    if not isinstance(patch, dict):
        return patch
    base = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            base.pop(key, None)
        else:
            base[key] = merged(base.get(key), item)
    return base


def change(before: Json, edit: Callable[[Json], object]) -> Json:
    after = copy.deepcopy(before)
    edit(after)
    return after


class Recording(k8s.ApiClient):
    """The client library's last step before the wire."""

    def call_api(self, *_: Any, body: Json | None = None, **__: Any) -> object:
        self.body = body
        return object()


def sent(act: Callable[[eks.EksCluster, KubeNode], object]) -> Json:
    """Body of the PATCH that the pipeline's adapter sends."""
    cluster, client = eks.EksCluster("demo"), Recording()
    cluster._api, cluster._until = client, math.inf
    act(cluster, KubeNode("hyperpod-i-0123456789abcdef0", "u", "7", False, {}, {}))
    assert client.body is not None
    return client.body


NOTES: dict[str, str | None] = {BY: "inc-1", REASON: "C1", AT: "2026-11-30T00:00:00Z"}
CORDON = sent(lambda cluster, n: cluster.patch_node(n, unschedulable=True, annotations=NOTES))
RELEASE = sent(
    lambda cluster, n: cluster.patch_node(n, unschedulable=False, annotations=dict.fromkeys(NOTES))
)
REPLACE = sent(lambda cluster, n: cluster.label_node(n, {eks.HEALTH_LABEL: eks.REPLACE_VALUE}))
FORBIDDEN = sent(lambda cluster, n: cluster.refuses_health_label(n))


FORGED: dict[str, tuple[Json, Callable[[Json], object], str]] = {
    "the label that replaces": (
        cordoned(),
        lambda n: n["metadata"]["labels"].update({HEALTH: "UnschedulablePendingReplacement"}),
        "labels",
    ),
    "the label that reboots, with a cordon": (
        node(),
        lambda n: n.update(
            merged(merged(n, CORDON), {"metadata": {"labels": {HEALTH: "UnschedulablePendingReboot"}}})
        ),
        "labels",
    ),
    "a label gone": (node(), lambda n: n["metadata"]["labels"].clear(), "labels"),
    "all labels gone": (node(), lambda n: n["metadata"].pop("labels"), "labels"),
    "a label more": (node(), lambda n: n["metadata"]["labels"].update({"x": "y"}), "labels"),
    "another's annotation": (
        node(),
        lambda n: n["metadata"]["annotations"].update({"x": "y"}),
        "annotations",
    ),
    "another's annotation changed": (
        node(),
        lambda n: n["metadata"]["annotations"].update({"node.alpha.kubernetes.io/ttl": "1"}),
        "annotations",
    ),
    "another's annotation gone": (node(), lambda n: n["metadata"].pop("annotations"), "annotations"),
    "a name that begins like ours": (
        node(),
        lambda n: n["metadata"]["annotations"].update({"training.sdc/cordoned-by-x": "y"}),
        "annotations",
    ),
    "a taint": (
        node(),
        lambda n: n["spec"].update({"taints": [{"key": "x", "effect": "NoExecute"}]}),
        "taints",
    ),
    "the provider id": (node(), lambda n: n["spec"].update({"providerID": "aws:///x"}), "spec"),
    "an external id": (node(), lambda n: n["spec"].update({"externalID": "x"}), "spec"),
    "a source of the kubelet's settings": (
        node(configSource={"configMap": {"name": "a"}}),
        lambda n: n["spec"].update({"configSource": {"configMap": {"name": "b"}}}),
        "spec",
    ),
    "another owner": (
        merged(node(), {"metadata": {"ownerReferences": [{"uid": "a"}]}}),
        lambda n: n["metadata"].update({"ownerReferences": [{"uid": "b"}]}),
        "owns",
    ),
    "a pod network": (node(), lambda n: n["spec"].update({"podCIDR": "10.0.0.0/24"}), "spec"),
    "a finalizer": (node(), lambda n: n["metadata"].update({"finalizers": ["x/y"]}), "owns"),
    "a cordon without an incident": (node(), lambda n: n["spec"].update({"unschedulable": True}), "carries"),
    "a release of somebody else's cordon": (
        node(unschedulable=True),
        lambda n: n["spec"].pop("unschedulable"),
        "releases only",
    ),
}

FORGED_LABELS: list[tuple[Json, dict[str, str], str]] = [  # by the label replacer
    (cordoned(), {HEALTH: "UnschedulablePendingReboot"}, "to UnschedulablePendingReplacement only"),
    (cordoned(), {HEALTH: "UnschedulablePendingReplacement", "x": "y"}, "health label only"),
    (node(), {HEALTH: "UnschedulablePendingReplacement"}, "has cordoned"),
    (node(unschedulable=True), {HEALTH: "UnschedulablePendingReplacement"}, "has cordoned"),
]
