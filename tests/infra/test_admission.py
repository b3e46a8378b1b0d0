"""The admission policy's CEL, evaluated: what the pipeline sends passes, what it must not is denied."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import kubernetes.client as k8s
import kubernetes_validate
import pytest
import yaml

from emulator.kubernetes_access import ClusterAccess
from infra.bundling import ROOT
from infra.eks_access import CORDONERS, GROUPS, LABEL_REPLACERS, READERS
from lambdas.adapters import eks
from lambdas.domain.world import KubeNode
from lambdas.steps.effects import CORDONED_AT, CORDONED_BY, CORDONED_REASON

FOLDER = ROOT / "infra" / "eks_access"
HEALTH = "sagemaker.amazonaws.com/node-health-status"
BY, REASON, AT = CORDONED_BY, CORDONED_REASON, CORDONED_AT
Json = dict[str, Any]


def documents(name: str) -> list[Json]:
    return [item for item in yaml.safe_load_all((FOLDER / name).read_text()) if item]


POLICIES = {
    d["metadata"]["name"]: d["spec"] for d in documents("admission.yaml") if "Binding" not in d["kind"]
}


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


def denials(
    group: str, before: Json, after: Json, operation: str = "UPDATE", subresource: str = ""
) -> list[str]:
    """Messages of all validations that say no, over all policies that match the group."""
    access = ClusterAccess()
    access.apply(documents("admission.yaml"))
    return [text for _, text in access.denials([group], operation, before, after, subresource)]


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


def test_the_pipeline_s_cordon_and_release_pass() -> None:
    assert denials(CORDONERS, node(), merged(node(), CORDON)) == []
    assert denials(CORDONERS, cordoned(), merged(cordoned(), RELEASE)) == []


@pytest.mark.parametrize("before", [node(), cordoned(), node(unschedulable=True)])
def test_what_the_pipeline_sends_to_be_denied_is_denied(before: Json) -> None:
    (message,) = denials(CORDONERS, before, merged(before, FORBIDDEN))
    assert "labels" in message


def test_a_cordon_over_somebody_else_s_passes_and_keeps_it() -> None:
    theirs = node(unschedulable=True)
    assert denials(CORDONERS, theirs, merged(theirs, {"metadata": {"annotations": {REASON: "C1"}}})) == []


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


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_patch_is_denied_for_its_own_reason(name: str) -> None:
    before, edit, reason = FORGED[name]
    (message,) = denials(CORDONERS, before, change(before, edit))
    assert reason in message


@pytest.mark.parametrize(("operation", "subresource"), [("CREATE", ""), ("DELETE", ""), ("UPDATE", "status")])
def test_nodes_are_neither_made_nor_deleted_nor_reported_on(operation: str, subresource: str) -> None:
    for group in (CORDONERS, LABEL_REPLACERS):
        before = cordoned()
        assert any("neither makes" in m for m in denials(group, before, before, operation, subresource))


def test_others_are_not_judged() -> None:
    before = node()
    after = change(before, lambda n: n["metadata"]["labels"].clear())
    assert denials("system:masters", before, after) == denials(READERS, before, after) == []


def test_the_label_replacer_sets_that_label_to_that_value_on_a_cordoned_node() -> None:
    assert denials(LABEL_REPLACERS, cordoned(), merged(cordoned(), REPLACE)) == []


@pytest.mark.parametrize(
    ("before", "labels", "reason"),
    [
        (cordoned(), {HEALTH: "UnschedulablePendingReboot"}, "to UnschedulablePendingReplacement only"),
        (cordoned(), {HEALTH: "UnschedulablePendingReplacement", "x": "y"}, "health label only"),
        (node(), {HEALTH: "UnschedulablePendingReplacement"}, "has cordoned"),
        (node(unschedulable=True), {HEALTH: "UnschedulablePendingReplacement"}, "has cordoned"),
    ],
)
def test_the_label_replacer_sets_nothing_else(before: Json, labels: Json, reason: str) -> None:
    (message,) = denials(LABEL_REPLACERS, before, merged(before, {"metadata": {"labels": labels}}))
    assert reason in message


def test_the_label_replacer_releases_nothing() -> None:
    both = merged(RELEASE, {"metadata": {"labels": {HEALTH: "UnschedulablePendingReplacement"}}})
    (message,) = denials(LABEL_REPLACERS, cordoned(), merged(cordoned(), both))
    assert "one label and nothing else" in message


def test_a_group_that_may_patch_nodes_has_a_policy() -> None:
    rules = {d["metadata"]["name"]: d["rules"] for d in documents("rbac.yaml") if d["kind"] == "ClusterRole"}
    patchers = {
        d["subjects"][0]["name"]
        for d in documents("rbac.yaml")
        if d["kind"] == "ClusterRoleBinding"
        and any("patch" in rule["verbs"] for rule in rules[d["roleRef"]["name"]])
    }
    judged = "".join(policy["matchConditions"][0]["expression"] for policy in POLICIES.values())
    assert patchers == {CORDONERS, LABEL_REPLACERS} <= set(GROUPS.values())
    assert all(f"'{group}'" in judged for group in patchers)


def test_each_policy_is_bound_and_denies() -> None:
    bindings = [d["spec"] for d in documents("admission.yaml") if "Binding" in d["kind"]]
    assert {b["policyName"] for b in bindings} == POLICIES.keys()
    assert all(b["validationActions"] == ["Deny"] for b in bindings)
    assert all(policy["failurePolicy"] == "Fail" for policy in POLICIES.values())


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_the_manifests_are_what_kubernetes_takes(name: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, "1.31", strict=True)
