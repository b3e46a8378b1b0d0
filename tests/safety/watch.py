"""Looks over the handlers' shoulder: the invariants I1 to I10, judged at the moment of each effect.

In: each port call before and after it is carried out, and what people and HyperPod really did. Out:
`violations`, one sentence each. It shares no code with the guards it judges: it counts, compares and reads
the world by itself.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from lambdas.domain.approval import Action, Answer
from lambdas.domain.incident import CheckResult, State
from tests.unit.lambdas.fakes import World
from training_agent.contract import Mode

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
NEEDED = {
    "kubernetes.patch_node": Mode.CONTAIN,
    "kubernetes.evict": Mode.CONTAIN,
    "quarantine.hold": Mode.CONTAIN,
    "quarantine.release": Mode.CONTAIN,
    "cluster.start_health_check": Mode.REPLACE,
    "cluster.replace": Mode.REPLACE,
}
ORDER = [Mode.OBSERVE, Mode.CONTAIN, Mode.REPLACE]


@dataclass(frozen=True)
class Issued:
    """A replacement that HyperPod carries out."""

    at: datetime
    incident_id: str
    instance_id: str


@dataclass
class Limits:
    """The deployed settings that the judge holds the handlers to."""

    mode: Mode = Mode.REPLACE
    per_day: int = 2
    percent: float = 100
    per_hour: int = 2


class Watch:
    """`before` judges an effect that is about to happen, `after` remembers what happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.limits = Limits()
        self.violations: list[str] = []
        self.issued: list[Issued] = []
        self.calls: Counter[str] = Counter()
        self.replace_calls: Counter[str] = Counter()  # by incident, refused ones included
        self.cordoner: dict[str, str] = {}  # node -> incident id, or "human"
        self.consent: dict[str, Answer] = {}  # approval id -> what a person really answered there
        self.effects: list[tuple[str, str, str]] = []  # incident, kind, subject
        self.breaker_closed_at = datetime.min.replace(tzinfo=timezone.utc)
        self.checking: dict[
            str, str
        ] = {}  # instance -> incident whose check was called last, after its cordon
        self.checked: dict[tuple[str, str], bool] = {}  # (incident, instance) -> did its check end as failed?

    def before(self, function: str, incident_id: str, call: str, args: tuple[Any, ...]) -> None:
        self.calls[call] += 1
        if call not in NEEDED:
            return
        self._halted(incident_id, call)
        row = self.world.incidents.rows[incident_id]
        if row.synthetic:
            self.say("drill", f"{call} by {incident_id}, which is a fire drill")
        if row.state.terminal and function != "resume":  # by which an operator releases
            self.say("I10", f"{call} by {incident_id}, which has ended as {row.state.value}")
        if call == "cluster.replace":
            self._replace(incident_id, args[0])
            if function == "replace_by_label" and self.world.cluster.facts.node_recovery != "Automatic":
                self.say("I1", f"{args[0]} is labelled where HyperPod does not act on it")
        elif call == "cluster.start_health_check":
            self._check(incident_id, args[1])
        elif call == "kubernetes.patch_node":
            self._patch(incident_id, args[0].name, args[1])
        elif call == "kubernetes.evict":
            self._evict(incident_id, args[0])

    def after(self, function: str, incident_id: str, call: str, args: tuple[Any, ...], out: Any) -> None:
        if call == "cluster.replace" and out.accepted:
            self.issued.append(Issued(self.world.clock.at, incident_id, args[0]))
            self.effects.append((incident_id, "replace", args[0]))
        elif call == "controls.close_breaker" and out:
            self.breaker_closed_at = self.world.clock.at
        elif call == "cluster.start_health_check":
            self.effects.append((incident_id, "deep_check", args[1]))
            self.checking[args[1]] = incident_id
        elif call == "kubernetes.patch_node":
            kind = "cordon" if args[1] else "uncordon"
            self.cordoner[args[0].name] = incident_id if args[1] else ""
            self.effects.append((incident_id, f"{kind}:{args[0].name}", args[0].name))
        elif call == "kubernetes.evict":
            self.effects.append((incident_id, "evict", f"{args[0].namespace}/{args[0].name}"))

    def say(self, invariant: str, text: str) -> None:
        self.violations.append(f"{invariant}: {text}")

    def _halted(self, incident_id: str, call: str) -> None:
        control = self.world.controls.control
        mode = min((self.limits.mode, control.mode or self.limits.mode), key=ORDER.index)
        if control.kill_switch or ORDER.index(mode) < ORDER.index(NEEDED[call]):
            self.say(
                "I5", f"{call} by {incident_id} under kill switch {control.kill_switch}, mode {mode.value}"
            )

    def _replace(self, incident_id: str, instance_id: str) -> None:
        self.replace_calls[incident_id] += 1
        now, members = self.world.clock.at, self.world.cluster.members
        text = self.world.incidents.alarms.get(incident_id, "")
        rows = [
            r
            for r in self.world.approvals.rows.values()
            if r.incident_id == incident_id
            and r.action is Action.REPLACE
            and r.instance_id == instance_id
            and r.answer is Answer.APPROVE
            and r.expires_at > now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            and r.evidence_hash == hashlib.sha256(text.encode()).hexdigest()
            and self.consent.get(r.approval_id) is Answer.APPROVE
        ]
        if not rows:
            self.say("I1", f"{instance_id} by {incident_id} without a person's unexpired, matching consent")
        if instance_id not in members:
            self.say("I1", f"{instance_id} is not in the cluster")
        else:
            self._budget(incident_id, members[instance_id].group)
        check = self.world.incidents.rows[incident_id].deep_check
        if check.result is CheckResult.FAILED and check.note == "label Failed":
            self._proven(incident_id, instance_id, failed=True)
        if any(i.incident_id == incident_id for i in self.issued):
            self.say("I2", f"{incident_id} replaces twice")
        for other in self.issued:
            # By what HyperPod has done, not by what its incident says of itself; a person who closes the
            # breaker has looked at what was issued before.
            under_way = other.instance_id in members and other.at > self.breaker_closed_at
            if other.incident_id != incident_id and under_way:
                self.say("I3", f"{incident_id} beside {other.incident_id}, which is under way")
        if self.cordoner.get(f"hyperpod-{instance_id}") != incident_id:
            self.say("I1", f"{instance_id} is not cordoned by {incident_id}")

    def _budget(self, incident_id: str, group: str) -> None:
        now, limits = self.world.clock.at, self.limits
        running = sum(m.group == group and m.status == "Running" for m in self.world.cluster.members.values())
        allowed = min(limits.per_day, max(1, int(limits.percent * running // 100)))
        day = [i for i in self.issued if i.at > now - DAY]
        if len(day) >= allowed:
            self.say("I4", f"{incident_id} is number {len(day) + 1} in 24 hours, {allowed} are allowed")
        if sum(i.at > now - HOUR for i in day) >= limits.per_hour:
            self.say("I4", f"{incident_id} is over the {limits.per_hour} of an hour")

    def _check(self, incident_id: str, instance_id: str) -> None:
        name = f"hyperpod-{instance_id}"
        job = self.world.incidents.rows[incident_id].job.uid
        if self.cordoner.get(name) != incident_id:
            self.say("I7", f"deep check of {name}, which {incident_id} did not cordon")
        if any(p.node == name and job in p.labels.values() for p in self.world.kubernetes.pods.values()):
            self.say("I7", f"deep check of {name}, where the job still has pods")
        others = [i for i, m in self.world.cluster.members.items() if m.status == "DeepHealthCheckInProgress"]
        if others:
            self.say("I7", f"deep check of {instance_id} beside that of {others}")
        if self.world.cluster.facts.node_recovery != "None" and not self._consented(incident_id):
            self.say("A16", f"deep check of {instance_id} under Automatic without consent")

    def _consented(self, incident_id: str) -> bool:
        return any(
            row.incident_id == incident_id
            and row.action.value == "deep_check"
            and self.consent.get(row.approval_id) is Answer.APPROVE
            for row in self.world.approvals.rows.values()
        )

    def _patch(self, incident_id: str, node: str, unschedulable: bool) -> None:
        by = self.cordoner.get(node, "")
        row = self.world.incidents.rows[incident_id]
        if not unschedulable and not row.state.terminal and row.closing is State.RELEASED:
            self._proven(incident_id, node.removeprefix("hyperpod-"), failed=False)
        if not unschedulable and by != incident_id:
            self.say("I7", f"{incident_id} uncordons {node}, cordoned by {by or 'nobody'}")
        former = self.world.incidents.rows.get(by)
        left = former is not None and former.state.terminal and former.state is not State.REJECTED_KEPT
        if unschedulable and by not in ("", incident_id) and not left:
            self.say("I7", f"{incident_id} takes over the cordon of {node}, which is {by}'s")

    def check_ended(self, instance_id: str, *, failed: bool) -> None:
        """HyperPod's check of a node has really ended, as the plant knows it."""
        if instance_id in self.checking:
            self.checked[self.checking.pop(instance_id), instance_id] = failed

    def _proven(self, incident_id: str, instance_id: str, *, failed: bool) -> None:
        """Released or accused on a check's word: this incident's own check of the node ended so."""
        if self.checked.get((incident_id, instance_id)) is not failed:
            self.say("I9", f"{incident_id} judges {instance_id} by a check that never ended so")

    def _evict(self, incident_id: str, pod: Any) -> None:
        incident = self.world.incidents.rows[incident_id]
        if incident.job.uid not in pod.labels.values():
            self.say("I7", f"{pod.name} of another job is evicted by {incident_id}")
        if pod.node not in {t.node for t in incident.targets}:
            self.say("I7", f"{pod.name} is evicted from {pod.node}, which {incident_id} does not suspect")

    def unrecorded(self) -> list[str]:
        """I8: effects that no row and no audit entry of their incident tells of."""
        rows, trail = self.world.incidents.effects, self.world.incidents.trail
        missing = []
        for incident_id, kind, subject in self.effects:
            by_row = any(i == incident_id and name.startswith(kind) for i, name in rows)
            by_trail = any(
                entry[0] == incident_id and entry[1].startswith(kind) and subject in str(entry)
                for entry in trail
            )
            if not by_row and not by_trail:
                missing.append(f"I8: {kind} of {subject} by {incident_id} left no entry")
        return missing
