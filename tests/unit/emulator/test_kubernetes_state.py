"""Patches, selectors and the state of the fake Kubernetes, without a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from emulator.kubernetes import Change, KubernetesState, NotFoundError
from emulator.kubernetes_patch import PatchError, json_patch, merge_patch, selected, strategic_merge_patch
from emulator.timers import Timers
from tests.patience import PATIENCE_S


@pytest.fixture
def state() -> Iterator[KubernetesState]:
    timers = Timers(1 / 1000)
    made = KubernetesState(timers)
    made.add_node("n1", labels={}, annotations={}, gpus=2, provider_id="p")
    yield made
    made.close()
    timers.close()


def test_merge_patch_removes_nulls_and_keeps_the_rest() -> None:
    assert merge_patch({"a": {"b": 1, "c": 2}, "l": [1]}, {"a": {"b": None}, "l": [2]}) == {
        "a": {"c": 2},
        "l": [2],
    }


def test_strategic_merge_patch_merges_taints_by_key_and_effect() -> None:
    old = {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]}
    added = strategic_merge_patch(old, {"taints": [{"key": "c", "effect": "NoExecute"}]})
    assert [t["key"] for t in added["taints"]] == ["a", "b", "c"]
    removed = strategic_merge_patch(old, {"taints": [{"key": "a", "$patch": "delete"}]})
    assert [t["key"] for t in removed["taints"]] == ["b"]


def test_json_patch_tests_before_it_changes() -> None:
    old = {"spec": {"taints": [{"key": "a"}]}, "m": {"x/y": "1"}}
    operations: list[dict[str, Any]] = [
        {"op": "test", "path": "/spec/taints/0/key", "value": "a"},
        {"op": "add", "path": "/spec/taints/-", "value": {"key": "b"}},
        {"op": "replace", "path": "/m/x~1y", "value": "2"},
    ]
    assert json_patch(old, operations) == {
        "spec": {"taints": [{"key": "a"}, {"key": "b"}]},
        "m": {"x/y": "2"},
    }
    for bad in (
        [{"op": "test", "path": "/m/x~1y", "value": "9"}],
        [{"op": "replace", "path": "/m/none", "value": 1}],
        [{"op": "remove", "path": "/nowhere/at/all"}],
        [{"op": "move", "path": "/m"}],
        {"op": "add"},
    ):
        with pytest.raises(PatchError):
            json_patch(old, bad)
    assert old["m"] == {"x/y": "1"}


@pytest.mark.parametrize(
    ("labels", "fields", "expected"),
    [
        ("a=1", "", True),
        ("a==1,b", "", True),
        ("a=2", "", False),
        ("a!=2,!c", "", True),
        ("c", "", False),
        ("", "spec.nodeName=n1", True),
        ("", "spec.nodeName=n2", False),
        ("", "spec.nodeName!=", True),
        ("a=1", "status.phase=Running,metadata.name=p", True),
    ],
)
def test_selectors(labels: str, fields: str, expected: bool) -> None:
    pod = {
        "metadata": {"name": "p", "labels": {"a": "1", "b": "x"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    assert selected(pod, labels, fields) is expected


def test_a_pod_waits_pending_until_it_is_bound(state: KubernetesState) -> None:
    assert state.create_pod("p", gpus=2)["status"]["phase"] == "Pending"
    assert state.free_nodes(2) == ["n1"]
    bound = state.bind_pod("p", "n1")
    assert (bound["spec"]["nodeName"], bound["status"]["phase"]) == ("n1", "Running")
    assert state.free_nodes(1) == []
    assert state.free_nodes(0) == ["n1"]


def test_a_name_is_free_again_after_the_pod_is_gone(state: KubernetesState) -> None:
    first = state.create_pod("p", node="n1")
    with pytest.raises(ValueError, match="exists already"):
        state.create_pod("p")
    state.delete_pod("p")
    assert state.create_pod("p")["metadata"]["uid"] != first["metadata"]["uid"]


def test_a_successor_of_the_same_name_survives_the_end_of_its_predecessor(state: KubernetesState) -> None:
    state.create_pod("p", node="n1")
    state.terminate_pod("p")
    state.delete_pod("p")
    successor = state.create_pod("p")
    gone = threading.Event()
    state._timers.after(60, gone.set)  # after the grace period of the first
    assert gone.wait(PATIENCE_S)
    assert state.get("Pod", ("default", "p"))["metadata"]["uid"] == successor["metadata"]["uid"]


def test_binding_to_a_node_that_is_gone_is_refused(state: KubernetesState) -> None:
    state.create_pod("p")
    with pytest.raises(NotFoundError):
        state.bind_pod("p", "n2")


def test_changes_arrive_in_order_and_a_failing_watcher_stops_nobody(
    state: KubernetesState, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    def fail(change: Change) -> None:
        raise RuntimeError("a bad watcher")

    def watch(change: Change) -> None:
        if change.kind == "Pod":
            seen.append((change.action, change.name))
            if change.action == "DELETED":
                done.set()

    state.on_change(fail)
    state.on_change(watch)
    state.create_pod("p")
    state.bind_pod("p", "n1")
    state.terminate_pod("p")
    assert done.wait(PATIENCE_S)
    assert seen == [("ADDED", "p"), ("MODIFIED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]
    assert "a watcher of the fake Kubernetes failed" in caplog.text


def test_snapshots_do_not_change_the_state(state: KubernetesState) -> None:
    state.nodes["n1"]["spec"]["unschedulable"] = True
    assert "unschedulable" not in state.nodes["n1"]["spec"]
