"""A job of two pods and the fake API server's own state, for tests of the fake training operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from emulator.kubernetes import KubernetesState
from emulator.names import GPU_UUIDS_ANNOTATION
from emulator.timers import Timers
from emulator.training_operator import JobSpec


class Cluster(KubernetesState):
    """The fake API server's state with nodes of two GPUs."""

    def __init__(self, *nodes: str) -> None:
        super().__init__(Timers(0.01))
        for name in nodes:
            self.add(name)

    def add(self, name: str) -> None:
        gpus = {GPU_UUIDS_ANNOTATION: f"GPU-{name}-0,GPU-{name}-1"}
        self.add_node(name, labels={}, annotations=gpus, gpus=2, provider_id=name)

    def cordon(self, name: str, cordoned: bool = True) -> None:
        node = self.get("Node", name)
        node["spec"]["unschedulable"] = cordoned
        self.put_node(node)

    def phase(self, name: str) -> str | None:
        pod = self.pods.get(("training", name))
        return pod["status"]["phase"] if pod else None


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
