"""A whole plant in memory: jobs, nodes, HyperPod's own moves, people, queues, the state machine and a clock.

In: the synthesized definition. Out: `alarm`, `human`, `advance` and the like for proofs to play with. The
real handlers run behind `wires`, `watch` judges each of their effects. Nothing here waits for real time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from infra.logical_ids import camel
from lambdas import handlers, observability, wiring
from lambdas.domain.errors import PipelineError
from lambdas.domain.incident import Incident, State
from lambdas.domain.times import stamp
from lambdas.domain.world import ClusterNode, KubeNode
from lambdas.settings import HANDLERS, VARIABLES
from tests.events import builder
from tests.unit.lambdas.conftest import VALUES
from tests.unit.lambdas.drive import CONTEXT
from training_agent.contract import EVENT_SOURCE, Alarm, DetailType, Finding, Job, ResumePoint

from .asl import Definition
from .fleet import JobRun, PlantCallback, PlantCluster, PlantExecutions
from .machine import Execution, Killed, Machine
from .people import People
from .watch import Watch
from .wires import Wired, Wires

MAX_RECEIVES = 5  # of a message, before the dead-letter queue
ALIASES = {"replacer": "cluster", "labeller": "cluster"}  # further ports onto HyperPod
NOT_WIRED = ("settings", "clock")
CHECK_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"


def born_with(instance_id: str) -> str:
    """What the checks at its start left on a node: labels outlive their check, bad ones too."""
    return "Failed" if int(instance_id.removeprefix("i-"), 16) % 3 == 0 else "Passed"


class Plant(People):
    """Everything; one per test."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, definition: Definition, jobs: int = 1, nodes: int = 3
    ) -> None:
        for name in {n for names in VARIABLES.values() for n in names}:
            monkeypatch.setenv(name, VALUES.get(name, name.lower()))
        monkeypatch.setattr(observability.metrics.provider, "namespace", "TrainingSDC")
        super().__init__(monkeypatch)
        self.world.cluster = PlantCluster(self)
        self.world.callback = PlantCallback(self)
        self.world.executions = PlantExecutions(self)  # type: ignore[assignment]
        self.world.kubernetes.nodes.clear()
        self.world.kubernetes.pods.clear()
        self.watch = Watch(self.world)
        self.wires = Wires(self.watch)
        self.machine = Machine(definition, self.call, lambda: self.world.clock.at)
        self.dead_letters: list[str] = []
        self.raised: list[str] = []
        self._agenda: list[tuple[datetime, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._functions = {f"{camel(name)}Function": name for name in HANDLERS}
        for name in wiring.FACTORIES:
            if name not in NOT_WIRED:
                wired = Wired(ALIASES.get(name, name), getattr(self.world, name), self.wires)
                monkeypatch.setitem(wiring.FACTORIES, name, lambda _s, wired=wired: wired)
        wiring.needs.cache_clear()
        numbers = itertools.count(1)
        self.jobs = [
            JobRun(
                Job(f"llama-{j}", f"job-{j:04d}", 1, "training"),
                [f"i-{next(numbers):017x}" for _ in range(nodes)],
            )
            for j in range(jobs)
        ]
        for job in self.jobs:
            for instance in job.instances:
                self.add_node(instance)
                self.label_check(instance, born_with(instance))
            self.start_job(job)

    # the world
    def swap(self, instance_id: str) -> str | None:
        """The old instance vanishes with its node and pods, a new one runs."""
        cluster, kubernetes = self.world.cluster, self.world.kubernetes
        if instance_id not in cluster.members:
            return None
        old = self.vanish(instance_id)
        new = f"i-{next(cluster._numbers):017x}"
        cluster.members[new] = ClusterNode(new, old.group, "Running", stamp(self.world.clock.at))
        name = f"hyperpod-{new}"
        kubernetes.nodes[name] = KubeNode(name, name, "1", False, {}, {CHECK_LABEL: born_with(new)})
        for job in self.jobs:
            job.instances = [new if i == instance_id else i for i in job.instances]
        return new

    def vanish(self, instance_id: str) -> ClusterNode:
        kubernetes, name = self.world.kubernetes, f"hyperpod-{instance_id}"
        kubernetes.nodes.pop(name, None)
        for key in [k for k, p in kubernetes.pods.items() if p.node == name]:
            del kubernetes.pods[key]
        self.watch.cordoner.pop(name, None)
        return self.world.cluster.members.pop(instance_id)

    def label_check(self, instance_id: str, said: str) -> None:
        name = f"hyperpod-{instance_id}"
        node = self.world.kubernetes.nodes.get(name)
        if node is not None:
            self.world.kubernetes.change(name, labels={**node.labels, CHECK_LABEL: said})

    def end_check(self, instance_id: str, *, failed: bool, ours: bool = True) -> None:
        """HyperPod ends its check: labels and status; under Automatic a failed node is replaced."""
        if instance_id not in self.world.cluster.members:
            return
        self.label_check(instance_id, "Failed" if failed else "Passed")
        if ours:
            self.watch.check_ended(instance_id, failed=failed)
        self.world.cluster.set_status(instance_id, "Running")
        if failed and self.world.cluster.facts.node_recovery == "Automatic":
            self.swap(instance_id)

    def start_job(self, job: JobRun, resumed_from: int | None = None) -> None:
        """All pods start on their instances and register."""
        for name, instance in job.pods().items():
            if instance in self.world.cluster.members:
                self.add_pod(name, f"{name}-{job.job.attempt}", instance, job.job)
        seats = tuple(replace(s, pod_uid=f"{s.pod_name}-{job.job.attempt}") for s in job.seats)
        for node in range(len(job.instances)):
            message = builder.registration(
                node, seats, job.job, resumed_from_step=resumed_from, time=stamp(self.world.clock.at)
            )
            self.deliver(builder.event(message), "register")

    def job_returns(self, job: JobRun | None = None, resumed_from: int | None = 20, **_: Any) -> None:  # type: ignore[override]
        """The next attempt of a job, wherever its instances are now."""
        job = job or self.jobs[0]
        job.job = replace(job.job, attempt=job.job.attempt + 1)
        self.start_job(job, resumed_from)

    def finding(self, make: Callable[..., Finding], rank: int, job: JobRun | None = None, *a: Any) -> Finding:
        """A finding on a rank of the job, where it sits now."""
        return make(rank, *a, seats=(job or self.jobs[0]).seats)

    def alarm_of(
        self, *findings: Finding, job: JobRun | None = None, step: int = 30, **changes: Any
    ) -> Alarm:
        job = job or self.jobs[0]
        now = {"job": job.job, "step": step, "time": stamp(self.world.clock.at)}
        window = {"suspect_window": (step - 9, step), "resume_from": ResumePoint(step - 10, "/shared/x")}
        return builder.alarm(*findings, seats=job.seats, **{**now, **window, **changes})

    def replaces_by_label(self) -> None:
        """As deployed with the other method: the function behind the state is another one."""
        self._functions["ReplaceFunction"] = "replace_by_label"
        facts = self.world.cluster.facts
        self.world.cluster.facts = replace(facts, node_recovery="Automatic")

    # functions and queues
    def function(self, logical_id: str) -> str:
        """Name of a deployed function."""
        return self._functions[logical_id]

    def call(self, logical_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Invoke a deployed function for the state machine."""
        name = self.function(logical_id)
        self.wires.enter(name, str(payload.get("incident_id", "")))
        answer: dict[str, Any] = getattr(handlers, name)(payload, CONTEXT)
        return answer

    def deliver(self, body: str | dict[str, Any], to: str = "ingest") -> bool:
        """One SQS message, delivered until it is taken; False when it went to the dead-letter queue."""
        for _ in range(MAX_RECEIVES):
            self.wires.enter(to)
            try:
                if not self.send(body, to=getattr(handlers, to))["batchItemFailures"]:
                    return True
            except Killed:
                continue
            except Exception as e:  # noqa: BLE001  # an uncaught exception of a handler is a finding
                self.raised.append(f"{to}: {e!r}")
        self.dead_letters.append(to)
        return False

    def alarm(self, alarm: Alarm, deliveries: int = 1) -> list[Incident]:
        """Deliver an alarm; the incidents that it opened."""
        before = set(self.world.incidents.rows)
        for _ in range(deliveries):
            self.deliver(builder.event(alarm))
        return [i for i in list(self.world.incidents.rows.values()) if i.id not in before]

    def operator_releases(self, incident_id: str) -> None:
        """By hand, with the command of docs/operate.md."""
        self.wires.enter("resume", incident_id)
        asked = {"by": "alex", "reason": "looked at it"}
        with contextlib.suppress(Killed, PipelineError):
            handlers.resume({"incident_id": incident_id, "release": asked}, CONTEXT)

    def clockwork(self, function: str) -> None:
        """What the schedule calls: the reconciler, the fire drill; a drill's alarm takes its way."""
        self.wires.enter(function)
        before = len(self.world.bus.alarms)
        with contextlib.suppress(Killed, PipelineError):
            getattr(handlers, function)({}, CONTEXT)
        for detail in self.world.bus.alarms[before:]:
            kind = DetailType.ALARM.value
            self.deliver(
                {"id": "drill", "detail-type": kind, "source": EVENT_SOURCE, "detail": json.loads(detail)}
            )

    # time
    def later(self, delay: timedelta, what: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (self.world.clock.at + delay, next(self._order), what))

    def pump(self) -> None:
        """Start what was asked for and run what can run, until nothing moves."""
        while True:
            for name, incident_id in list(self.world.workflow.started.items()):
                self.machine.start(name, incident_id)
            before = sum(e.events for e in self.machine.executions.values())
            self.machine.run()
            if sum(e.events for e in self.machine.executions.values()) == before:
                return

    def advance(self, delta: timedelta, stop: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; whatever is due happens in its order."""
        until = self.world.clock.at + delta
        self.pump()
        while not stop():
            dues = [d for d in (self.machine.next_due(), self._agenda[0][0] if self._agenda else None) if d]
            if not dues or min(dues) > until:
                self.world.clock.at = max(self.world.clock.at, until)
                return
            self.world.clock.at = max(self.world.clock.at, min(dues))
            self._do_what_is_due()
            self.machine.expire()
            self.pump()

    def tick(self, delta: timedelta) -> None:
        """Let time pass in the world alone, for whoever walks the state machine by other means."""
        self.world.clock.at += delta
        self._do_what_is_due()

    def _do_what_is_due(self) -> None:
        while self._agenda and self._agenda[0][0] <= self.world.clock.at:
            heapq.heappop(self._agenda)[2]()

    def until(self, state: str, incident_id: str, within: timedelta = timedelta(days=1)) -> bool:
        """Advance until the incident's execution waits in a state."""
        self.advance(within, lambda: self.execution(incident_id).state == state)
        return self.execution(incident_id).state == state

    # reading
    def execution(self, incident_id: str) -> Execution:
        return next(e for e in self.machine.executions.values() if e.incident_id == incident_id)

    def incident(self, incident_id: str) -> Incident:
        return self.world.incidents.rows[incident_id]

    def waiting(self) -> list[str]:
        """Incidents that wait for a person."""
        return [e.incident_id for e in self.machine.executions.values() if e.running and e.token]

    def open_incidents(self) -> list[Incident]:
        return [i for i in self.world.incidents.rows.values() if not i.state.terminal]

    def shared_instances(self) -> list[str]:
        """Instances that more than one open, located incident suspects."""
        located = [i for i in self.open_incidents() if i.state is not State.OPENING]
        named = Counter(t.instance_id for i in located for t in i.targets)
        return [instance for instance, count in named.items() if count > 1]

    def violations(self) -> list[str]:
        """Everything that must never be; empty is the proof."""
        return [*self.watch.violations, *self.watch.unrecorded(), *self.raised]
