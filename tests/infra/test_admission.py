"""The admission policy's CEL, evaluated: what the pipeline sends passes, what it must not is denied."""

from __future__ import annotations

import kubernetes_validate
import pytest

from emulator.kubernetes_access import ClusterAccess
from infra.eks_access import CORDONERS, GROUPS, LABEL_REPLACERS, READERS
from tests.infra.patches import (
    CORDON,
    FOLDER,
    FORBIDDEN,
    FORGED,
    FORGED_LABELS,
    HEALTH,
    REASON,
    RELEASE,
    REPLACE,
    Json,
    change,
    cordoned,
    documents,
    merged,
    node,
)

POLICIES = {
    d["metadata"]["name"]: d["spec"] for d in documents("admission.yaml") if "Binding" not in d["kind"]
}


def denials(
    group: str, before: Json, after: Json, operation: str = "UPDATE", subresource: str = ""
) -> list[str]:
    """Messages of all validations that say no, over all policies that match the group."""
    access = ClusterAccess()
    access.apply(documents("admission.yaml"))
    return [text for _, text in access.denials([group], operation, before, after, subresource)]


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


@pytest.mark.parametrize(("before", "labels", "reason"), FORGED_LABELS)
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
