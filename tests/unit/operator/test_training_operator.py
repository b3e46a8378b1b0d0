"""The fake training operator restarts, reschedules and stops processes as the real one does.

Real processes (small shell commands), a fake of the API server's state in memory.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emulator.names import GPU_UUIDS_ANNOTATION
from emulator.training_operator import JobSpec, TrainingOperator


class Cluster:
    """State of a small cluster."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = {name: self._node(name) for name in nodes}
        self.pods: dict[str, dict[str, Any]] = {}

    def _node(self, name: str) -> dict[str, Any]:
        metadata = {"name": name, "annotations": {GPU_UUIDS_ANNOTATION: f"GPU-{name}-0,GPU-{name}-1"}}
        return {
            "metadata": metadata,
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }

    def add(self, name: str) -> None:
        self.nodes[name] = self._node(name)

    def list_nodes(self) -> list[dict[str, Any]]:
        return list(self.nodes.values())

    def list_pods(self) -> list[dict[str, Any]]:
        return list(self.pods.values())

    def create_pod(self, manifest: dict[str, Any]) -> dict[str, Any]:
        manifest["metadata"]["uid"] = str(uuid.uuid4())
        self.pods[manifest["metadata"]["name"]] = manifest
        return manifest

    def bind_pod(self, namespace: str, name: str, node: str) -> None:
        self.pods[name]["spec"]["nodeName"] = node

    def set_pod_phase(self, namespace: str, name: str, phase: str) -> None:
        if name in self.pods:  # it may have been evicted meanwhile
            self.pods[name]["status"]["phase"] = phase

    def delete_pod(self, namespace: str, name: str) -> None:
        self.pods.pop(name, None)


def script(text: str) -> Callable[[JobSpec, int, int], list[str]]:
    """A launcher that runs `text` in a shell; `$NODE_RANK` is the pod's rank."""
    return lambda job, node_rank, port: ["sh", "-c", f"NODE_RANK={node_rank}; {text}"]


def job(tmp_path: Path, text: str) -> JobSpec:
    return JobSpec(
        name="job",
        namespace="training",
        nodes=2,
        gpus_per_node=2,
        command=[],
        python=sys.executable,
        environment={"MARKS": str(tmp_path)},
        shared_dir=tmp_path,
        log_dir=tmp_path / "logs",
        launcher=script(text),
    )


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_job_whose_pods_all_end_well_is_done(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    with TrainingOperator(cluster, job(tmp_path, "exit 0")) as operator:
        assert operator.wait(10)
    assert operator.failure is None
    assert len(operator.attempts) == 1
    assert {p["status"]["phase"] for p in cluster.list_pods()} == {"Succeeded"}


def test_one_nonzero_exit_restarts_every_pod_in_place(tmp_path: Path) -> None:
    text = '[ "$SDC_ATTEMPT" = 2 ] && exit 0; [ $NODE_RANK = 1 ] && exit 3; exec sleep 60'
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)) as operator:
        assert operator.wait(10)
    assert [a.nodes for a in operator.attempts] == [("a", "b"), ("a", "b")]
    assert (1, 1, 3) in operator.exit_codes
    assert (1, 0, -15) in operator.exit_codes  # the sibling was terminated, not waited for


def test_an_evicted_pod_waits_for_a_node_and_keeps_its_rank(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    text = '[ "$SDC_ATTEMPT" = 2 ] && echo $NODE_RANK on $NODE_NAME >> $MARKS/seats && exit 0; exec sleep 60'
    with TrainingOperator(cluster, job(tmp_path, text)) as operator:
        eventually(lambda: len(operator.attempts) == 1)
        cluster.nodes["b"]["spec"]["unschedulable"] = True
        cluster.delete_pod("training", "job-worker-1")
        eventually(lambda: cluster.pods.get("job-worker-1", {}).get("status", {}).get("phase") == "Pending")
        time.sleep(0.5)
        assert len(operator.attempts) == 1  # nothing starts while a pod is Pending
        cluster.add("c")
        assert operator.wait(10)
    assert [a.nodes for a in operator.attempts] == [("a", "b"), ("a", "c")]
    assert sorted((tmp_path / "seats").read_text().split("\n")[:2]) == ["0 on a", "1 on c"]


def test_a_released_node_takes_its_pod_back(tmp_path: Path) -> None:
    cluster = Cluster("a", "b")
    text = '[ "$SDC_ATTEMPT" = 2 ] && exit 0; exec sleep 60'
    with TrainingOperator(cluster, job(tmp_path, text)) as operator:
        eventually(lambda: len(operator.attempts) == 1)
        cluster.nodes["a"]["spec"]["unschedulable"] = True
        cluster.delete_pod("training", "job-worker-0")
        eventually(lambda: "job-worker-0" in cluster.pods)
        del cluster.nodes["a"]["spec"]["unschedulable"]
        assert operator.wait(10)
    assert operator.attempts[-1].nodes == ("a", "b")


def test_a_job_that_never_ends_well_stops_at_its_limit_with_a_reason(tmp_path: Path) -> None:
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, "exit 1"), max_attempts=2) as operator:
        assert operator.wait(10)
    assert operator.failure == "the job did not end within 2 attempts"


def test_pods_get_what_kubelet_and_device_plugin_give(tmp_path: Path) -> None:
    text = "env > $MARKS/env-$NODE_RANK"
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)) as operator:
        assert operator.wait(10)
    lines = (tmp_path / "env-1").read_text().splitlines()
    assert "NODE_NAME=b" in lines
    assert "NVIDIA_VISIBLE_DEVICES=GPU-b-0,GPU-b-1" in lines
    assert "SDC_ATTEMPT=1" in lines
