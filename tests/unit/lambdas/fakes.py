"""The world in memory: one fake per port, with the rules that the real services have.

`World` plays HyperPod, Kubernetes and the tables; `install` lets the handlers use it instead of AWS.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from lambdas import handlers, wiring
from lambdas.domain.errors import CallbackGoneError, ConflictError
from lambdas.domain.telemetry import Reading
from lambdas.domain.times import stamp
from lambdas.domain.world import ClusterFacts, ClusterNode, KubeNode, KubePod, ReplaceAnswer
from lambdas.steps.register import JOB_UID_LABEL
from training_agent.contract import Metric

from .fake_stores import (
    START,
    FakeApprovals,
    FakeClock,
    FakeControls,
    FakeIncidents,
    FakeQuarantine,
    FakeRegistrations,
)

LAUNCHED = "2025-12-31T00:00:00.000000Z"
APPROVER = "oncall@example.com"


class FakeCluster:
    """HyperPod; `on_replace` may raise or answer in place of success."""

    def __init__(self) -> None:
        self.members: dict[str, ClusterNode] = {}
        self.facts = ClusterFacts(node_recovery="None", on_start_checks={"gpu": ("InstanceStress",)})
        self.calls: list[tuple[str, str]] = []
        self.checks: list[tuple[str, ...]] = []
        self.superseded = False
        self.on_replace: Any = ReplaceAnswer(accepted=True)
        self._numbers = itertools.count(0x900)

    def describe(self) -> ClusterFacts:
        return self.facts

    def nodes(self) -> tuple[ClusterNode, ...]:
        return tuple(self.members.values())

    def set_status(self, instance_id: str, status: str) -> None:
        self.members[instance_id] = replace(self.members[instance_id], status=status)

    def start_health_check(self, group: str, instance_id: str, checks: tuple[str, ...]) -> None:
        self.calls.append(("check", instance_id))
        self.checks.append(checks)
        self.set_status(instance_id, "DeepHealthCheckInProgress")

    def check_superseded(self, group: str, instance_id: str, asked_at: datetime) -> bool:
        return self.superseded

    def replace(self, instance_id: str) -> ReplaceAnswer:
        self.calls.append(("replace", instance_id))
        if isinstance(self.on_replace, Exception):
            raise self.on_replace
        if self.on_replace.accepted:
            self.set_status(instance_id, "ShuttingDown")
        answer: ReplaceAnswer = self.on_replace
        return answer

    def swap(self, instance_id: str) -> str:
        """The replacement ends: the old id vanishes, a new one runs."""
        old = self.members.pop(instance_id)
        new = f"i-{next(self._numbers):017x}"
        self.members[new] = ClusterNode(new, old.group, "Running", stamp(START + timedelta(minutes=30)))
        return new


class FakeKubernetes:
    """Nodes and pods; `errors` are raised one after the other by the next patches."""

    def __init__(self) -> None:
        self.nodes: dict[str, KubeNode] = {}
        self.pods: dict[tuple[str, str], KubePod] = {}
        self.errors: list[Exception] = []
        self.evicted: list[str] = []
        self.admission_policy = True

    def refuses_health_label(self, node: KubeNode) -> bool:
        return self.admission_policy

    def node(self, name: str) -> KubeNode | None:
        return self.nodes.get(name)

    def patch_node(self, node: KubeNode, *, unschedulable: bool, annotations: dict[str, str | None]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        now = self.nodes[node.name]
        if now.resource_version != node.resource_version:
            raise ConflictError("the object has been modified")
        merged = {**now.annotations, **annotations}
        self.change(
            node.name,
            unschedulable=unschedulable,
            set_by_us=unschedulable,
            annotations={k: v for k, v in merged.items() if v is not None},
        )

    def change(self, name: str, **changes: Any) -> None:
        """Anybody's write: a human with kubectl, HyperPod's labels. Who changes a field owns it."""
        node = self.nodes[name]
        if changes.get("unschedulable", node.unschedulable) is not node.unschedulable:
            changes.setdefault("set_by_us", False)
        version = str(int(node.resource_version) + 1)
        self.nodes[name] = replace(node, resource_version=version, **changes)

    def pod(self, namespace: str, name: str) -> KubePod | None:
        return self.pods.get((namespace, name))

    def pods_on(self, node: str) -> tuple[KubePod, ...]:
        return tuple(p for p in self.pods.values() if p.node == node)

    def pending_pods(self) -> tuple[KubePod, ...]:
        return tuple(p for p in self.pods.values() if p.node is None)

    def cordoned(self) -> tuple[KubeNode, ...]:
        return tuple(n for n in self.nodes.values() if n.unschedulable)

    def job_pods(self) -> tuple[KubePod, ...]:
        return tuple(p for p in self.pods.values() if JOB_UID_LABEL in p.labels)

    def evict(self, pod: KubePod) -> None:
        self.evicted.append(pod.name)
        self.pods.pop((pod.namespace, pod.name), None)


class FakeTelemetry:
    """The Prometheus workspace; None: not configured."""

    def __init__(self) -> None:
        self.readings: tuple[Reading, ...] | None = None
        self.error: Exception | None = None

    def around(self, gpu_uuids: Sequence[str], at: datetime) -> tuple[Reading, ...] | None:
        if self.error is not None:
            raise self.error
        return self.readings


class FakeMail:
    def __init__(self) -> None:
        self.confirmed: tuple[str, ...] = (APPROVER,)
        self.sent: list[tuple[str, str, str]] = []

    def approvers(self) -> tuple[str, ...]:
        return self.confirmed

    def send(self, approver: str, subject: str, body: str) -> None:
        self.sent.append((approver, subject, body))


class FakeWorkflow:
    def __init__(self) -> None:
        self.started: dict[str, str] = {}

    def start(self, incident_id: str, name: str) -> None:
        self.started.setdefault(name, incident_id)


class FakeCallback:
    """Step Functions' side of the tokens: each answers once."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.answers: list[tuple[str, dict[str, object]]] = []
        self.error: Exception | None = None

    def succeed(self, task_token: str, output: dict[str, object]) -> None:
        if self.error is not None:
            raise self.error
        if task_token not in self.waiting:
            raise CallbackGoneError("TaskTimedOut")
        self.waiting.remove(task_token)
        self.answers.append((task_token, output))


class FakeReleaser:
    """The resume function, called as Lambda calls it; `error` stands for one that broke off."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def release(self, incident_id: str, by: str, reason: str) -> tuple[bool, str]:
        from .drive import CONTEXT

        if self.error is not None:
            raise self.error
        asked = {"incident_id": incident_id, "release": {"by": by, "reason": reason}}
        answer = handlers.resume(asked, CONTEXT)
        return answer["outcome"] == "released", str(answer["story"])


class FakeExecutions:
    """Step Functions: what was started runs until somebody says otherwise."""

    def __init__(self, workflow: FakeWorkflow) -> None:
        self.workflow = workflow
        self.ended: dict[str, str] = {}

    def status(self, name: str) -> str | None:
        return self.ended.get(name, "RUNNING" if name in self.workflow.started else None)


class FakeNumbers:
    def __init__(self) -> None:
        self.put_so_far: dict[str, float] = {}
        self.alive: frozenset[str] = frozenset()
        self.fired: dict[Metric, dict[str, datetime]] = {}  # jobs that put more than zero, and when last

    def put(self, numbers: Mapping[str, float]) -> None:
        self.put_so_far.update(numbers)

    def jobs_with(
        self, metric: Metric, jobs: Sequence[str], since: datetime, until: datetime
    ) -> dict[str, datetime]:
        found = dict.fromkeys(self.alive, until) if metric is Metric.HEARTBEAT else self.fired.get(metric, {})
        return {job: at for job, at in found.items() if job in jobs and since <= at <= until}

    def above_zero(self, metrics: Sequence[Metric], since: datetime, until: datetime) -> frozenset[Metric]:
        put = self.fired
        return frozenset(m for m in metrics if any(since <= at <= until for at in put.get(m, {}).values()))


class FakeBus:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.alarms: list[str] = []

    def alarm(self, detail: str) -> None:
        self.alarms.append(detail)

    def state_changed(self, detail: dict[str, object]) -> None:
        self.events.append(detail)


@dataclass
class World:
    """Everything behind the ports."""

    incidents: FakeIncidents = field(default_factory=FakeIncidents)
    approvals: FakeApprovals = field(default_factory=FakeApprovals)
    registrations: FakeRegistrations = field(default_factory=FakeRegistrations)
    quarantine: FakeQuarantine = field(default_factory=FakeQuarantine)
    controls: FakeControls = field(default_factory=FakeControls)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    kubernetes: FakeKubernetes = field(default_factory=FakeKubernetes)
    telemetry: FakeTelemetry = field(default_factory=FakeTelemetry)
    mail: FakeMail = field(default_factory=FakeMail)
    workflow: FakeWorkflow = field(default_factory=FakeWorkflow)
    callback: FakeCallback = field(default_factory=FakeCallback)
    releaser: FakeReleaser = field(default_factory=FakeReleaser)
    bus: FakeBus = field(default_factory=FakeBus)
    numbers: FakeNumbers = field(default_factory=FakeNumbers)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.executions = FakeExecutions(self.workflow)

    @property
    def replacer(self) -> FakeCluster:
        """Both ways to replace end at HyperPod."""
        return self.cluster

    labeller = replacer

    def install(self, monkeypatch: Any) -> None:
        """Let `wiring` hand out these instead of adapters."""
        wiring.needs.cache_clear()
        for name in wiring.FACTORIES:
            if name != "settings":
                monkeypatch.setitem(wiring.FACTORIES, name, self._factory(name))

    def _factory(self, name: str) -> Any:
        return lambda _settings: getattr(self, name)
