"""Fake of the HyperPod training operator: keeps one job's pods on nodes and their torchruns running.

Comes in: a job (command, environment, node count) and the fake Kubernetes API. It creates one pod per
node rank, binds Pending pods to schedulable nodes, and starts one torchrun per pod when all pods are bound:
that is an attempt. As the real one does:

- any non-zero exit restarts the torchrun of every pod in place (same pods, same nodes);
- a pod that vanishes (eviction, node gone) kills its torchrun; a successor with the same node rank stays
  Pending until a node fits, then all pods start as a new attempt;
- each of these faults is counted against the job's restart budget: when the process restarts are used up, all
  pods are made anew; when the job restarts are, the job fails;
- static rendezvous; MASTER_ADDR is the pod of node rank 0.

Goes out: pod objects in the fake API, process logs, `attempts` for the story. Next: the agent in the pods.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulator.kubernetes import KubernetesState
from emulator.names import GPU_UUIDS_ANNOTATION
from emulator.restart_budget import Restart, RestartBudget, Restarts
from training_agent.contract import Env

POLL_SECONDS = 0.1
TERMINATION_GRACE_SECONDS = 10.0
JOB_UID_LABEL = "training.sdc/job-uid"
JOB_NAME_LABEL = "training.sdc/job-name"


def torchrun(job: JobSpec, node_rank: int, port: int) -> list[str]:
    """The command of one pod: torchrun inside the agent's launcher, which keeps the workers' code."""
    launch = [job.python, "-m", "training_agent.run", "--", job.python, "-m", "torch.distributed.run"]
    launch += ["--nnodes", str(job.nodes), "--nproc-per-node", str(job.gpus_per_node)]
    # every pod's address is the loopback interface here
    launch += ["--node-rank", str(node_rank), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    # the operator restarts, as it does under hyperpodrun: its budget counts each start
    return [*launch, "--max-restarts", "0", *job.command]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the job's manifest says."""

    name: str
    namespace: str
    nodes: int
    gpus_per_node: int
    command: Sequence[str]  # the training script and its arguments, after torchrun's own
    python: str  # interpreter of the training image
    environment: Mapping[str, str]
    shared_dir: Path
    log_dir: Path
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    service_account: str = "training"
    launcher: Callable[[JobSpec, int, int], list[str]] = torchrun  # (job, node rank, master port) -> command
    budget: RestartBudget = field(default_factory=RestartBudget)


@dataclass(slots=True)
class Worker:
    """One pod: its place in the job and the torchrun that runs in it now."""

    node_rank: int
    pod: str
    pod_uid: str = ""
    node: str | None = None
    process: subprocess.Popen[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One common start of all pods."""

    number: int
    started: float  # time.monotonic(), seconds
    nodes: tuple[str, ...]  # by node rank


class TrainingOperator:
    """Reconciles one job until it succeeds, fails for good or is stopped."""

    def __init__(self, kubernetes: KubernetesState, job: JobSpec) -> None:
        self.job = job
        self.attempts: list[Attempt] = []
        self.exit_codes: list[tuple[int, int, int]] = []  # (attempt, node rank, code of the pod's process)
        self.failure: str | None = None
        self.restarts = Restarts(job.budget)
        self._kubernetes = kubernetes
        self._workers = [Worker(rank, f"{job.name}-worker-{rank}") for rank in range(job.nodes)]
        self._stop = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training-operator", daemon=True)

    def __enter__(self) -> TrainingOperator:
        self.job.log_dir.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self, timeout: float) -> bool:
        """Wait until the job has succeeded or failed for good; False when `timeout` seconds passed first."""
        return self._done.wait(timeout)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(POLL_SECONDS) and not self._done.is_set():
                self._reconcile()
        except Exception as e:  # noqa: BLE001 - a dead operator must end the wait, with its reason
            self.failure = f"the training operator broke: {e!r}"
        finally:
            self._stop_all()
            self._done.set()

    def _reconcile(self) -> None:
        if self._replace_lost_pods():
            self._restart()
            if self._done.is_set():
                return
        self._bind_pending_pods()
        if any(w.node is None for w in self._workers):
            return
        if all(w.process is None for w in self._workers):
            self._start_attempt()
            return
        codes = [w.process.poll() if w.process else None for w in self._workers]
        if any(code not in (None, 0) for code in codes):
            self._restart()
        elif all(code == 0 for code in codes):
            self._stop_all()
            self._done.set()

    def _restart(self) -> None:
        """Stop all processes after a fault; what the budget allows begins with the next look, or nothing."""
        self._stop_all()
        answer = self.restarts.after_fault(time.monotonic())
        if isinstance(answer, str):
            self.failure = f"the job failed: {answer}"
            self._done.set()
        elif answer is Restart.JOB:
            for w in self._workers:
                self._kubernetes.delete_pod(w.pod, namespace=self.job.namespace)

    def _replace_lost_pods(self) -> bool:
        """Create missing pods; True when one that was running has vanished or is being evicted."""
        alive = {
            pod["metadata"]["uid"]
            for pod in self._kubernetes.pods.values()
            if "deletionTimestamp" not in pod["metadata"]
        }
        lost = False
        for w in self._workers:
            if w.pod_uid in alive:
                continue
            lost = lost or w.process is not None
            self._end(w)  # the kubelet's part: a SIGTERM, then the pod is gone
            self._kubernetes.delete_pod(w.pod, namespace=self.job.namespace)
            w.node = None
            w.pod_uid = self._kubernetes.create_pod(
                w.pod,
                namespace=self.job.namespace,
                labels={JOB_UID_LABEL: self.job.uid, JOB_NAME_LABEL: self.job.name},
                service_account=self.job.service_account,
                gpus=self.job.gpus_per_node,
                owner=("HyperPodPyTorchJob", self.job.name),
            )["metadata"]["uid"]
        return lost

    def _bind_pending_pods(self) -> None:
        for w in self._workers:
            if w.node is None and (free := self._kubernetes.free_nodes(self.job.gpus_per_node)):
                w.node = free[0]
                self._kubernetes.bind_pod(w.pod, w.node, namespace=self.job.namespace)

    def _start_attempt(self) -> None:
        number = len(self.attempts) + 1
        port = _free_port()
        for w in self._workers:
            log = self.job.log_dir / f"{w.pod}-attempt-{number}.log"
            with log.open("wb") as out:
                w.process = subprocess.Popen(
                    self.job.launcher(self.job, w.node_rank, port),
                    env=self._environment(w, number),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        self.attempts.append(Attempt(number, time.monotonic(), tuple(str(w.node) for w in self._workers)))

    def _environment(self, worker: Worker, attempt: int) -> dict[str, str]:
        """The container's environment: the manifest's, the downward API's, the device plugin's."""
        node = self._kubernetes.get("Node", worker.node)
        termination_log = self.job.log_dir / f"{worker.pod}-attempt-{attempt}.termination-log"
        return {
            **{k: os.environ[k] for k in ("PATH", "HOME", "TMPDIR") if k in os.environ},
            **self.job.environment,
            Env.NODE_NAME.value: str(worker.node),
            Env.POD_NAME.value: worker.pod,
            Env.POD_UID.value: worker.pod_uid,
            Env.POD_NAMESPACE.value: self.job.namespace,
            Env.JOB_NAME.value: self.job.name,
            Env.JOB_UID.value: self.job.uid,
            Env.ATTEMPT.value: str(attempt),
            Env.SHARED_DIR.value: str(self.job.shared_dir),
            Env.GPU_UUIDS.value: ",".join(gpu_uuids_of(node)),
            Env.TERMINATION_LOG.value: str(termination_log),
        }

    def _stop_all(self) -> None:
        running = [w.process for w in self._workers if w.process is not None and w.process.poll() is None]
        for process in running:  # all first, so that their grace periods pass together
            process.send_signal(signal.SIGTERM)
        for w in self._workers:
            self._end(w)

    def _end(self, worker: Worker) -> None:
        """Forget the pod's process, terminating it when it still runs; its exit code is kept."""
        process, worker.process = worker.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(TERMINATION_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                _kill_tree(process.pid)
                process.wait()
        self.exit_codes.append((len(self.attempts), worker.node_rank, process.returncode))


def gpu_uuids_of(node: Mapping[str, Any]) -> list[str]:
    """GPUs of a fake node, in local-rank order."""
    annotation: str = node["metadata"]["annotations"][GPU_UUIDS_ANNOTATION]
    return annotation.split(",")


def _kill_tree(pid: int) -> None:
    """Kill a process and all that it started: torchrun gives each rank a session of its own."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    parents = {int(child): int(parent) for child, parent in rows}
    doomed = {pid}
    while more := {child for child, parent in parents.items() if parent in doomed} - doomed:
        doomed |= more
    for each in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
