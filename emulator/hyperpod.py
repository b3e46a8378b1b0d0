"""The fake HyperPod cluster: nodes, states, delays. In: what `hyperpod_api` was asked. Out: nodes that
change.

Real delays (a deep check 90 minutes, a replacement 25) go through `Timers`, which scales them. What happens
to an instance happens to its Kubernetes node object too, as HyperPod does it: labels during a deep check,
the old node object gone and another name after a replacement. Facts and sources: AWS's API reference
(botocore's model) and user guide; NodeRecovery is None, so that nothing is replaced before somebody
consents.
"""

from __future__ import annotations

import random
import threading
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any

from .kubernetes import KubernetesState
from .names import GPU_UUIDS_ANNOTATION, arn, cluster_id_of
from .timers import Timers

HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_CHECK_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"

QUEUE_SECONDS = 30.0  # from StartClusterHealthCheck to DeepHealthCheckInProgress
DEEP_CHECK_SECONDS = 90 * 60.0  # DCGM level 4 takes 45 to 90 minutes, EFA and NCCL on top
SHUTDOWN_SECONDS = 5 * 60.0  # ShuttingDown until the old instance and node object are gone
BOOT_SECONDS = 20 * 60.0  # Pending until the new instance is Running and its node has joined


class DeepCheck(str, Enum):
    """How deep health checks end."""

    PASS = "pass"
    FAIL = "fail"
    STUCK = "stuck"  # in progress for ever


class Status(str, Enum):
    """InstanceStatus.Status values that this fake uses."""

    RUNNING = "Running"
    PENDING = "Pending"
    SHUTTING_DOWN = "ShuttingDown"
    DEEP_CHECK = "DeepHealthCheckInProgress"


@dataclass
class Instance:
    """One instance; `number` is its slot in the rack, kept by the instance that replaces it."""

    instance_id: str
    number: int
    group: str
    instance_type: str
    launch_time: datetime
    gpu_uuids: tuple[str, ...]
    logical_id: str
    status: Status = Status.RUNNING

    @property
    def node(self) -> str:
        """Kubernetes node name."""
        return f"hyperpod-{self.instance_id}"


@dataclass
class Operation:
    """A cluster operation as ListClusterOperations shows it."""

    operation_id: str
    kind: str  # "DeepHealthCheck"
    status: str  # InProgress | Superseded | Done
    created: datetime
    details: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Request:
    """One API request as it came in, accepted or not."""

    time: datetime
    operation: str
    parameters: dict[str, Any]


class HyperPod:
    """The cluster. Tests and the demo read `nodes()`, `requests`, `replacements()`, and set how
    checks end (`set_deep_check`) or calls fail (`refuse_next`).

    Args:
        timers: scales the delays.
        kubernetes: where the node objects live.
        size: number of instances, all in the group "workers".
        seed: of instance ids and GPU UUIDs.
    """

    def __init__(
        self,
        timers: Timers,
        kubernetes: KubernetesState,
        *,
        name: str,
        eks_name: str,
        size: int,
        gpus_per_node: int,
        instance_type: str,
        deep_check: DeepCheck = DeepCheck.PASS,
        seed: int = 0,
    ) -> None:
        self.name = name
        self._deep_check, self._deep_check_of = deep_check, dict[str, DeepCheck]()
        self.node_recovery = "None"
        self.on_start_deep_checks = ["InstanceStress", "InstanceConnectivity"]
        self.requests: list[Request] = []
        self.instances: dict[str, Instance] = {}
        self.operations: list[Operation] = []
        self.refusals: list[tuple[str, str]] = []  # (operation, error code): the next such call gets it
        self.lock = threading.RLock()
        self._timers, self._kubernetes = timers, kubernetes
        self._random = random.Random(f"{name}/{seed}")
        self._gpus_per_node = gpus_per_node
        self._replaced: list[tuple[str, str]] = []
        self.group, self.instance_type, self.target_count = "workers", instance_type, size
        self.arn = arn("sagemaker", f"cluster/{cluster_id_of(name)}")
        self.eks_name = eks_name  # HyperPod's name is not the EKS name, and code must not assume it
        self.eks_arn = arn("eks", f"cluster/{self.eks_name}")
        self.created = datetime.now(timezone.utc)
        for number in range(size):
            self._join(self._new_instance(number, Status.RUNNING))

    def nodes(self) -> dict[str, str]:
        """Instance id -> status, in the order of the rack."""
        with self.lock:
            ordered = sorted(self.instances.values(), key=lambda i: i.number)
            return {i.instance_id: i.status.value for i in ordered}

    def replacements(self) -> list[tuple[str, str]]:
        """(old, new) instance ids of replacements whose new instance exists, in order."""
        with self.lock:
            return list(self._replaced)

    def set_deep_check(self, verdict: str, instance_id: str | None = None) -> None:
        """How deep checks end from now on: of one instance, or of all that have no verdict of their own."""
        if instance_id is None:
            self._deep_check = DeepCheck(verdict)
        else:
            self._deep_check_of[instance_id] = DeepCheck(verdict)

    def refuse_next(self, operation: str, code: str) -> None:
        """Answer the next call of `operation` with this error code (ThrottlingException, ...)."""
        with self.lock:
            self.refusals.append((operation, code))

    def start_deep_check(self, instance_ids: list[str], configurations: list[dict[str, Any]]) -> None:
        """Queue a check; the instances turn to DeepHealthCheckInProgress a little later."""
        operation = Operation(
            self._uuid(), "DeepHealthCheck", "InProgress", datetime.now(timezone.utc), configurations
        )
        with self.lock:
            self.operations.append(operation)
        self._timers.after(QUEUE_SECONDS, lambda: self._begin_deep_check(instance_ids, operation))

    def end_stuck_check(self, instance_id: str) -> None:
        """A check that would never end does, with the verdict that is set by now."""
        with self.lock:
            running = [o for o in self.operations if o.status == "InProgress"]
        for operation in running:
            self._end_deep_check([instance_id], operation)

    def replace(self, instance_id: str) -> None:
        """Begin a replacement: ShuttingDown, gone, then another instance in the same slot."""
        with self.lock:
            self.instances[instance_id].status = Status.SHUTTING_DOWN
        self._timers.after(SHUTDOWN_SECONDS, lambda: self._swap(instance_id))

    def _begin_deep_check(self, instance_ids: list[str], operation: Operation) -> None:
        with self.lock:
            checked = [
                i for i in instance_ids if i in self.instances and self.instances[i].status is Status.RUNNING
            ]
            for i in checked:
                self.instances[i].status = Status.DEEP_CHECK
        for i in checked:
            self._label(i, {DEEP_CHECK_LABEL: "InProgress", HEALTH_LABEL: "Unschedulable"})
        if not any(self._verdict(i) is DeepCheck.STUCK for i in checked):
            self._timers.after(DEEP_CHECK_SECONDS, lambda: self._end_deep_check(checked, operation))

    def _end_deep_check(self, instance_ids: list[str], operation: Operation) -> None:
        for i in instance_ids:
            passed = self._verdict(i) is DeepCheck.PASS
            health = "Schedulable" if passed else "UnschedulablePendingReplacement"
            self._label(i, {DEEP_CHECK_LABEL: "Passed" if passed else "Failed", HEALTH_LABEL: health})
        with self.lock:
            operation.status = "Done"
            for i in instance_ids:
                if i in self.instances and self.instances[i].status is Status.DEEP_CHECK:
                    self.instances[i].status = Status.RUNNING  # NodeRecovery None: nobody replaces it

    def _verdict(self, instance_id: str) -> DeepCheck:
        return self._deep_check_of.get(instance_id, self._deep_check)

    def _swap(self, instance_id: str) -> None:
        with self.lock:
            old = self.instances.pop(instance_id)
            new = self._new_instance(old.number, Status.PENDING)
            self._replaced.append((instance_id, new.instance_id))
        self._kubernetes.remove_node(old.node)
        self._timers.after(BOOT_SECONDS, lambda: self._finish_boot(new))

    def _finish_boot(self, new: Instance) -> None:
        self._join(new)
        with self.lock:
            new.status = Status.RUNNING

    def _new_instance(self, number: int, status: Status) -> Instance:
        instance = Instance(
            instance_id="i-" + "".join(self._random.choices("0123456789abcdef", k=17)),
            number=number,
            group=self.group,
            instance_type=self.instance_type,
            launch_time=datetime.now(timezone.utc),
            gpu_uuids=tuple(f"GPU-{self._uuid()}" for _ in range(self._gpus_per_node)),
            logical_id=self._uuid(),
            status=status,
        )
        self.instances[instance.instance_id] = instance
        return instance

    def _join(self, instance: Instance) -> None:
        labels = {
            HEALTH_LABEL: "Schedulable",
            GROUP_LABEL: instance.group,
            "sagemaker.amazonaws.com/cluster-name": self.name,
            "sagemaker.amazonaws.com/compute-type": "hyperpod",
            "node.kubernetes.io/instance-type": instance.instance_type,
        }
        self._kubernetes.add_node(
            instance.node,
            labels=labels,
            annotations={GPU_UUIDS_ANNOTATION: ",".join(instance.gpu_uuids)},
            gpus=len(instance.gpu_uuids),
            provider_id=f"aws:///us-east-1a/sagemaker/cluster/{instance.node}",
        )

    def _label(self, instance_id: str, labels: dict[str, str]) -> None:
        self._kubernetes.label_node(f"hyperpod-{instance_id}", labels)

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))
