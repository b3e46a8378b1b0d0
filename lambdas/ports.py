"""What the steps need from the world, as Protocols; `adapters` holds the real ones, tests bring fakes.

All methods raise only errors of `domain.errors`. Reads that guard an effect are strongly consistent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from training_agent.contract import Metric, Mode

from .domain.approval import Answer, Approval, ApprovalState, Link
from .domain.incident import Effect, Incident
from .domain.policy import Breaker, Control
from .domain.telemetry import Reading
from .domain.world import (
    ClusterFacts,
    ClusterNode,
    Delivery,
    HistoryEntry,
    KubeNode,
    KubePod,
    Registered,
    ReplaceAnswer,
)


class Incidents(Protocol):
    def delivery(self, key: str, node: str | None) -> Delivery | None: ...
    def open(self, incident: Incident, alarm_text: str, earlier: Delivery | None) -> bool:
        """Write incident, alarm and delivery row together; False when somebody was faster."""
        ...

    def get(self, incident_id: str) -> Incident: ...
    def alarm(self, incident_id: str) -> str: ...
    def save(self, incident: Incident) -> Incident:
        """Conditional on the version read; raises ConflictError. Returns it with the new version."""
        ...

    def append_evidence(self, incident_id: str, key: str, attempt: int, text: str, at: datetime) -> None:
        """Keep once per delivery key and attempt; a later attempt of the job counts as a restart."""
        ...

    def occurrences(self, incident_id: str) -> tuple[tuple[str, int], ...]:
        """Delivery key and attempt of all that was appended as evidence, oldest first."""
        ...

    def kept_at(self, incident_id: str, key: str, attempt: int) -> str | None:
        """When that was appended as evidence for the first time; None when it never was."""
        ...

    def open_incidents(self) -> tuple[str, ...]:
        """Ids of all that have not ended, and of some that just did."""
        ...

    def forget_open(self, incident_id: str) -> None:
        """It has ended long enough ago."""
        ...

    def effects_of(self, incident_id: str) -> tuple[Effect, ...]: ...
    def audit(self, incident_id: str, what: str, result: str, at: datetime) -> None: ...
    def reject(self, reason: str, source: str, excerpt: str, at: datetime) -> None:
        """Audit row of an event that opened nothing."""
        ...

    def take_gate(self, gate: str, incident_id: str) -> str:
        """Take or read the gate; returns the id of the incident that holds it."""
        ...

    def free_gate(self, gate: str, incident_id: str) -> None: ...
    def effect(self, incident_id: str, name: str) -> Effect | None: ...
    def intend(self, incident_id: str, name: str, at: datetime) -> bool:
        """Write INTENT; False when the effect's row already stands."""
        ...

    def conclude(self, incident_id: str, name: str, result: str, at: datetime) -> None: ...
    def remember(self, entry: HistoryEntry) -> None: ...
    def history(self, subject: str, since: str = "") -> tuple[HistoryEntry, ...]: ...


class Approvals(Protocol):
    def create(self, approval: Approval, task_token: str) -> None:
        """Once; a standing row is left as it is and gets the newest token."""
        ...

    def add_link(self, secret_hash: str, link: Link) -> None: ...
    def link(self, secret_hash: str) -> Link | None: ...
    def get(self, approval_id: str) -> Approval | None:
        """Without the task token, strongly consistent."""
        ...

    def mark_mailed(self, approval_id: str, approver: str) -> None: ...
    def decide(self, approval_id: str, answer: Answer, reason: str, by: str, at: datetime) -> bool:
        """PENDING -> DECIDED, once; False when it is not pending any more."""
        ...

    def task_token(self, approval_id: str) -> str | None: ...
    def mark_delivered(self, approval_id: str) -> None: ...
    def end(self, approval_id: str, state: ApprovalState) -> bool:
        """PENDING -> EXPIRED or CLOSED, any -> SUPERSEDED; False when there is none in such a state."""
        ...


class Registrations(Protocol):
    def put(self, registered: Registered) -> None:
        """Never replaces a verified row."""
        ...

    def get(self, job_uid: str, attempt: int, node: str) -> Registered | None: ...
    def nodes(self, job_uid: str, attempt: int) -> int:
        """How many nodes of this attempt registered and were verified: what nobody can claim."""
        ...

    def after(self, job_uid: str, attempt: int) -> tuple[Registered, ...]:
        """Registrations of later attempts, oldest attempt first."""
        ...


class Quarantine(Protocol):
    def put_mode(self, mode: Mode) -> None: ...
    def hold(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> None:
        """Hold it, beside others who do: for these alarms in their attempts, the newest last."""
        ...

    def release(self, subject: str, occurrences: Sequence[str], incident_id: str, at: datetime) -> bool:
        """Hold it no more, and released it is when nobody does; False while another incident holds it."""
        ...


class Controls(Protocol):
    def read(self) -> Control: ...
    def lock(self, name: str, holder: str) -> bool:
        """Take a lock; True when it is ours now (also when it already was)."""
        ...

    def unlock(self, name: str, holder: str) -> None: ...
    def replacements(self, group: str) -> dict[str, datetime]:
        """When each incident last requested a replacement in this instance group; a day is kept."""
        ...

    def count_replacement(self, group: str, incident_id: str, at: datetime) -> None: ...
    def breaker(self) -> Breaker: ...
    def open_breaker(self, reason: str, incident_id: str, at: datetime) -> None: ...
    def close_breaker(self, reason: str, by: str, at: datetime) -> bool:
        """False when it is not open."""
        ...


class Cluster(Protocol):
    def describe(self) -> ClusterFacts: ...
    def nodes(self) -> tuple[ClusterNode, ...]:
        """All pages."""
        ...

    def start_health_check(self, group: str, instance_id: str, checks: tuple[str, ...]) -> None: ...
    def check_superseded(self, group: str, instance_id: str, asked_at: datetime) -> bool:
        """Was the check superseded that we asked for then, whatever others run? Unknown is no."""
        ...


class Kubernetes(Protocol):
    def node(self, name: str) -> KubeNode | None: ...
    def patch_node(self, node: KubeNode, *, unschedulable: bool, annotations: dict[str, str | None]) -> None:
        """Conditional on the resource version read; raises ConflictError."""
        ...

    def refuses_health_label(self, node: KubeNode) -> bool:
        """Dry run of the label change that would replace the node: is it denied to this identity?"""
        ...

    def pod(self, namespace: str, name: str) -> KubePod | None: ...
    def pods_on(self, node: str) -> tuple[KubePod, ...]: ...
    def pending_pods(self) -> tuple[KubePod, ...]:
        """Pods that wait for a node."""
        ...

    def evict(self, pod: KubePod) -> None: ...
    def cordoned(self) -> tuple[KubeNode, ...]:
        """Nodes that are unschedulable."""
        ...

    def job_pods(self) -> tuple[KubePod, ...]:
        """Pods of all guarded jobs, in all namespaces."""
        ...


class Replacer(Protocol):
    def replace(self, instance_id: str) -> ReplaceAnswer:
        """One request, never retried; raises OutcomeUnknownError when no answer came."""
        ...


class Telemetry(Protocol):
    def around(self, gpu_uuids: Sequence[str], at: datetime) -> tuple[Reading, ...] | None:
        """One reading per measure, minute by minute around a moment; None when no telemetry is configured."""
        ...


class Mail(Protocol):
    def approvers(self) -> tuple[str, ...]:
        """Confirmed e-mail subscriptions of the topic."""
        ...

    def send(self, approver: str, subject: str, body: str) -> None: ...


class Workflow(Protocol):
    def start(self, incident_id: str, name: str) -> None:
        """Start one execution; an execution of that name is success."""
        ...


class Callback(Protocol):
    def succeed(self, task_token: str, output: dict[str, object]) -> None:
        """Raises CallbackGoneError when nobody waits for it."""
        ...


class Releaser(Protocol):
    def release(self, incident_id: str, by: str, reason: str) -> tuple[bool, str]:
        """Let go what an ended incident left contained; (whether, one sentence). Once more is harmless."""
        ...


class Bus(Protocol):
    def state_changed(self, detail: dict[str, object]) -> None: ...
    def alarm(self, detail: str) -> None:
        """The fire drill's; raises when it was not taken."""
        ...


class Executions(Protocol):
    def status(self, name: str) -> str | None:
        """RUNNING, SUCCEEDED, FAILED, TIMED_OUT or ABORTED; None: no such execution."""
        ...


class Numbers(Protocol):
    def put(self, numbers: Mapping[str, float]) -> None: ...
    def above_zero(self, metrics: Sequence[Metric], since: datetime, until: datetime) -> frozenset[Metric]:
        """Which of these anybody in the cluster put more than zero of."""
        ...

    def jobs_with(
        self, metric: Metric, jobs: Sequence[str], since: datetime, until: datetime
    ) -> Mapping[str, datetime]:
        """Which of these jobs put more than zero of it, and when last, to the minute."""
        ...


class Clock(Protocol):
    def now(self) -> datetime: ...
