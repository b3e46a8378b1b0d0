"""The pipeline asks the API server whether it is limited, before it touches a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator.cloud import LocalCloud
from infra.eks_access import CORDONERS
from tests.workflow.scenario import Scenario


@pytest.fixture
def no_policy(cloud: LocalCloud) -> Iterator[None]:
    """`kubectl delete` of the cordoners' policy; its binding stays, as it does in a half-applied folder."""
    policy = cloud.kubernetes.access.delete("ValidatingAdmissionPolicy", "training-sdc-cordoners")
    yield
    cloud.kubernetes.access.apply([policy])


def test_policy_not_installed_nothing_is_cordoned(
    cloud: LocalCloud, no_policy: None, scenario: Scenario
) -> None:
    scenario.raise_alarm(scenario.culprit())
    assert scenario.end() == "HANDED_TO_HUMAN"
    assert not any(scenario.cordoned(node) for node in scenario.nodes)
    assert scenario.places[2].pod_name in {name for _, name in cloud.kubernetes.pods}
    assert scenario.replace_requests() == []
    assert "kubectl apply -f infra/eks_access/" in scenario.mails()[-1].body


def test_policy_installed_the_forbidden_label_is_asked_for_and_never_set(
    cloud: LocalCloud, scenario: Scenario
) -> None:
    before = len(cloud.kubernetes.requests)
    scenario.raise_alarm(scenario.culprit())
    scenario.answer("release")
    node = scenario.nodes[1]
    patches = [r for r in cloud.kubernetes.requests[before:] if r.method == "PATCH" and r.path.endswith(node)]
    assert CORDONERS in patches[0].groups
    assert patches[0].query["dryRun"] == "All" and "labels" in patches[0].body["metadata"]
    assert all("labels" not in p.body["metadata"] for p in patches[1:])
    assert (
        "UnschedulablePendingReplacement" not in cloud.kubernetes.nodes[node]["metadata"]["labels"].values()
    )
