"""Ambiguous rows: the agent's second confirmation, history of instance and GPU, a deep health check.

In: a DECIDED incident whose row wants confirmation. Out: "waiting" (the state machine comes back) or
"confirmed", and `decide` runs again. No API tells a check's result: labels and status are polled, and Running
means passed only after the check was seen in progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from training_agent.contract import Mode, gpu_subject, instance_subject

from ..domain.decision_table import Confirm, evaluate
from ..domain.errors import HaltedError, RefusedError
from ..domain.incident import CheckResult, DeepCheck, Incident, State, Target
from ..ports import Bus, Clock, Cluster, Controls, Incidents, Kubernetes
from ..settings import ConfirmSettings
from .effects import job_pods, ours, permit
from .outcome import StepResult, alarm_of, facts_of, findings_of, record

WAIT_SECONDS = 60
LONG_WAIT_SECONDS = 120  # after QUICK_POLLS: an execution's history must stay far from its limit of events
QUICK_POLLS = 30
MAX_POLLS = 135  # four hours: DCGM level 4 takes up to two
MAX_UNSEEN_POLLS = 15  # accepted and never seen in progress
MAX_WAITS_FOR_START = 60  # for the job's pods to leave, or for another check in this cluster
CHECK_LOCK = "deep_check"  # one check per cluster at a time
CHECK_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"  # InProgress | Passed | Failed


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ConfirmSettings
    incidents: Incidents
    controls: Controls
    cluster: Cluster
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    before = needs.incidents.get(incident_id)
    alarm = alarm_of(needs.incidents, before)
    facts = facts_of(needs.incidents, before, alarm, needs.settings.mode, needs.controls.read())
    row = evaluate(findings_of(alarm, before), facts)
    incident = before.to(State.CONFIRMING)
    if Confirm.SECOND_CONFIRMATION in row.confirm:
        story = "the agent's second confirmation was read"
        record(needs, before, replace(incident, second_read=True), story)
        return StepResult("confirmed", story)
    if Confirm.HISTORY in row.confirm and incident.repeats is None:
        incident = replace(incident, repeats=_repeats(needs.incidents, incident))
    if Confirm.DEEP_CHECK not in row.confirm or incident.repeats:
        story = f"history read: {'accused before' if incident.repeats else 'nothing before'}"
        record(needs, before, incident, story)
        return StepResult("confirmed", story)
    incident = _check(needs, incident)
    check = incident.deep_check
    waiting = check.result in (CheckResult.NOT_RUN, CheckResult.RUNNING)
    story = f"deep health check: {check.result.value}" + (f" ({check.note})" if check.note else "")
    record(needs, before, incident, story)
    if waiting:
        wait = WAIT_SECONDS if check.polls < QUICK_POLLS else LONG_WAIT_SECONDS
        return StepResult("waiting", story, wait_seconds=wait)
    needs.controls.unlock(CHECK_LOCK, incident.id)
    return StepResult("confirmed", story)


def _repeats(incidents: Incidents, incident: Incident) -> bool:
    """Was this instance, or one of these GPUs (also in another node), accused by another incident?"""
    subjects = [
        s for t in incident.targets for s in (instance_subject(t.instance_id), *map(gpu_subject, t.gpu_uuids))
    ]
    return any(e.incident_id != incident.id for s in subjects for e in incidents.history(s))


def _check(needs: Needs, incident: Incident) -> Incident:
    """Start the check, or look at the running one."""
    if incident.deep_check.result is CheckResult.RUNNING:
        return _poll(needs, incident)
    if not needs.settings.deep_check_enabled:
        return _ended(incident, CheckResult.UNAVAILABLE, "switched off")
    if len(incident.targets) != 1:
        return _ended(incident, CheckResult.UNAVAILABLE, "only one node is checked at a time")
    return _start(needs, incident, incident.targets[0])


def _start(needs: Needs, incident: Incident, target: Target) -> Incident:
    if needs.cluster.describe().node_recovery != "None":
        note = "NodeRecovery is Automatic: the check itself may replace the node, so a human starts it"
        return _ended(incident, CheckResult.NEEDS_APPROVAL, note)
    node = needs.kubernetes.node(target.node)
    if node is None:
        return _ended(incident, CheckResult.NODE_GONE, f"{target.node} is gone")
    if not ours(node, incident):
        return _ended(incident, CheckResult.UNAVAILABLE, "the node is not cordoned by us")
    if job_pods(needs, incident, target):
        return _wait(incident, "the job's pods have not left the node")
    if not needs.controls.lock(CHECK_LOCK, incident.id):
        return _wait(incident, "another check runs in this cluster")
    if needs.incidents.effect(incident.id, "deep_check") is not None:
        # A retry after a crash: the intent stands, so it may have been started. Look, never start again.
        note = "started before; looked at again"
        return _poll(needs, replace(incident, deep_check=DeepCheck(CheckResult.RUNNING, note=note)))
    try:
        permit(needs, Mode.REPLACE, "deep health check")
        needs.incidents.intend(incident.id, "deep_check", needs.clock.now())
        needs.cluster.start_health_check(target.group, target.instance_id)
    except (HaltedError, RefusedError) as e:
        return _ended(incident, CheckResult.UNAVAILABLE, str(e))
    needs.incidents.conclude(incident.id, "deep_check", "started", needs.clock.now())
    running = DeepCheck(CheckResult.RUNNING, before_label=node.labels.get(CHECK_LABEL))
    return _poll(needs, replace(incident, deep_check=running))


def _poll(needs: Needs, incident: Incident) -> Incident:
    target, check = incident.targets[0], incident.deep_check
    member = next((n for n in needs.cluster.nodes() if n.instance_id == target.instance_id), None)
    node = needs.kubernetes.node(target.node)
    if member is None or node is None:
        return _ended(incident, CheckResult.NODE_GONE, f"{target.instance_id} vanished during the check")
    label = node.labels.get(CHECK_LABEL)
    in_progress = label == "InProgress" or member.status == "DeepHealthCheckInProgress"
    seen = check.seen_in_progress or in_progress or (label is not None and label != check.before_label)
    if seen and not in_progress:
        if label == "Failed":
            return _ended(incident, CheckResult.FAILED, "label Failed")
        if member.status == "Running":
            return _ended(incident, CheckResult.PASSED, f"Running again, label {label}")
        return _ended(incident, CheckResult.FAILED, f"the instance is {member.status} after the check")
    polls = check.polls + 1
    if not seen and polls >= MAX_UNSEEN_POLLS:
        return _ended(incident, CheckResult.NEVER_STARTED, f"not seen in progress in {polls} looks")
    if polls >= MAX_POLLS:
        return _ended(incident, CheckResult.STUCK, f"still in progress after {polls} looks")
    return replace(incident, deep_check=replace(check, polls=polls, seen_in_progress=seen, note=""))


def _wait(incident: Incident, note: str) -> Incident:
    if incident.tries.get("confirm", 0) >= MAX_WAITS_FOR_START:
        return _ended(incident, CheckResult.UNAVAILABLE, note)
    return replace(incident.tried("confirm"), deep_check=replace(incident.deep_check, note=note))


def _ended(incident: Incident, result: CheckResult, note: str) -> Incident:
    return replace(incident, deep_check=replace(incident.deep_check, result=result, note=note))
