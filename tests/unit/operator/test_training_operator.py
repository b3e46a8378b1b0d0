"""The fake training operator restarts, reschedules and stops processes as the real one does.

Real processes (small shell commands), the fake API server's own state.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator import training_operator
from emulator.kubernetes import KubernetesState
from emulator.names import GPU_UUIDS_ANNOTATION
from emulator.timers import Timers
from emulator.training_operator import JobSpec, TrainingOperator

pytestmark = pytest.mark.enable_socket  # the operator looks for a free port


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
        cluster.cordon("b")
        cluster.terminate_pod("job-worker-1", namespace="training")
        eventually(lambda: cluster.phase("job-worker-1") == "Pending")
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
        cluster.cordon("a")
        cluster.delete_pod("job-worker-0", namespace="training")
        eventually(lambda: cluster.phase("job-worker-0") == "Pending")
        cluster.cordon("a", cordoned=False)
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


def test_a_rank_in_a_session_of_its_own_that_ignores_sigterm_ends_with_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_operator, "TERMINATION_GRACE_SECONDS", 0.5)
    rank = "import os,signal,time; signal.signal(15, signal.SIG_IGN); os.setsid(); time.sleep(60)"
    text = f"trap '' TERM; {sys.executable} -c '{rank}' & echo $! > $MARKS/rank-$NODE_RANK; wait"
    with TrainingOperator(Cluster("a", "b"), job(tmp_path, text)):
        eventually(lambda: len(list(tmp_path.glob("rank-*"))) == 2)
        time.sleep(0.5)
    for file in tmp_path.glob("rank-*"):
        seen = subprocess.run(
            ["ps", "-o", "stat=", "-p", file.read_text().strip()], capture_output=True, text=True, check=False
        )
        assert seen.stdout.strip()[:1] in ("", "Z"), "the rank still runs"
