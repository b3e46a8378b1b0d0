"""The dead-man's look, every five minutes: is anything stuck, silent, lost, or left behind?

In: a schedule, or events of HyperPod and CloudWatch from the default bus. Out: numbers for alarms; decisions
that were recorded and not delivered are delivered, questions about a node that is another one now are closed,
incidents whose execution has ended are ended and mailed, the mode row that agents read is kept current. It
reports cordons and jobs and never acts on them; nothing is ever replaced or released here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from training_agent.contract import Metric

from ..domain.errors import PermanentError, PipelineError
from ..domain.incident import State
from ..domain.times import moment
from ..observability import logger
from ..ports import (
    Approvals,
    Bus,
    Callback,
    Clock,
    Cluster,
    Controls,
    Executions,
    Incidents,
    Kubernetes,
    Mail,
    Numbers,
    Quarantine,
)
from ..settings import ReconcileSettings
from . import abandoned, cluster_events, details_missing, questions
from .effects import CORDONED_BY
from .locate import free_gates
from .mode_row import tell_mode
from .register import JOB_NAME_LABEL, JOB_UID_LABEL

KEPT = timedelta(hours=1)  # an ended incident stays listed so long: a late metric alarm is matched with it
START_GRACE = timedelta(minutes=15)  # of a job's first heartbeat
SLACK = timedelta(hours=1)
LONGEST: dict[State, timedelta] = {  # without a change of the row; beyond it nobody is at work
    State.CONFIRMING: timedelta(minutes=30),
    State.REPLACING: timedelta(minutes=30),
    State.VERIFYING: timedelta(minutes=30),
    State.CLOSING: timedelta(minutes=30),
}
IN_STATE = "incidents_in_"  # + the open state's name in lower case
FREED = frozenset({State.RELEASED, State.REJECTED_RELEASED, State.CLOSED, State.OBSERVED})


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ReconcileSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    quarantine: Quarantine
    cluster: Cluster
    kubernetes: Kubernetes
    mail: Mail
    callback: Callback
    executions: Executions
    numbers: Numbers
    bus: Bus
    clock: Clock


def run(needs: Needs) -> dict[str, float]:
    """Look at everything; one look that fails does not hinder the others."""
    numbers: dict[str, float] = {}
    looks: tuple[Callable[[Needs], dict[str, float]], ...] = (
        _mode, _incidents, _metrics, _cordons, _approvers, _heartbeats, _breaker,
    )  # fmt: skip
    failed = 0
    for look in looks:
        try:
            numbers |= look(needs)
        except PipelineError as e:
            failed += 1
            logger.error("a look failed", extra={"look": look.__name__.strip("_"), "reason": str(e)})
    numbers |= {"reconcile_failed_looks": failed, "reconcile_done": float(not failed)}
    needs.numbers.put(numbers)
    return numbers


def _mode(needs: Needs) -> dict[str, float]:
    tell_mode(needs)
    return {}


def _incidents(needs: Needs) -> dict[str, float]:
    now = needs.clock.now()
    counts = dict.fromkeys(
        ("incidents_open", "incidents_without_progress", "incidents_abandoned", "unknown_outcomes",
         "decisions_delivered", "oldest_open_incident_seconds"), 0.0,
    )  # fmt: skip
    for incident_id in needs.incidents.open_incidents():
        try:
            _incident(needs, incident_id, now, counts)
        except PipelineError as e:
            counts["incidents_without_progress"] += 1
            logger.error("incident not judged", extra={"incident_id": incident_id, "reason": str(e)})
    return counts


def _incident(needs: Needs, incident_id: str, now: datetime, counts: dict[str, float]) -> None:
    incident = needs.incidents.get(incident_id)
    if incident.state.terminal:
        free_gates(needs.incidents, incident)  # whoever wrote the end may have died right after it
        if now - moment(incident.updated_at or incident.opened_at) > KEPT:
            needs.incidents.forget_open(incident_id)
        return
    age = (now - moment(incident.opened_at)).total_seconds()
    counts["incidents_open"] += 1
    in_state = IN_STATE + incident.state.value.lower()
    counts[in_state] = counts.get(in_state, 0.0) + 1  # a state that holds none puts no number, and costs none
    counts["oldest_open_incident_seconds"] = max(counts["oldest_open_incident_seconds"], age)
    counts["unknown_outcomes"] += abandoned.unknown_outcomes(needs.incidents, incident)
    if incident.state is State.DETAILS_MISSING:  # has no execution, and needs none
        details_missing.look_after(needs, incident)
        return
    if abandoned.is_abandoned(needs, incident, now):
        abandoned.end(needs, incident)
        counts["incidents_abandoned"] += 1
        return
    if incident.state is State.AWAITING_APPROVAL:
        counts["decisions_delivered"] += questions.look_after(needs, incident)
    quiet = now - moment(incident.updated_at or incident.opened_at)
    waits = timedelta(seconds=needs.settings.approval_timeout_seconds)
    longest = LONGEST.get(incident.state, waits if incident.state is State.AWAITING_APPROVAL else timedelta())
    counts["incidents_without_progress"] += quiet > longest + SLACK


def _metrics(needs: Needs) -> dict[str, float]:
    lost = details_missing.look(needs)
    return {cluster_events.LOST: lost} if lost else {}  # a number that is put only then costs only then


def _cordons(needs: Needs) -> dict[str, float]:
    """Cordons that carry our mark and that no incident accounts for: reported, never acted on."""
    stray = []
    for node in needs.kubernetes.cordoned():
        by = node.annotations.get(CORDONED_BY)
        if by is not None and node.set_by_us and not _accounted_for(needs, by):
            stray.append(node.name)
    if stray:
        logger.warning("cordons without an incident", extra={"nodes": stray[:50]})
    return {"cordons_without_incident": len(stray)}


def _accounted_for(needs: Needs, incident_id: str) -> bool:
    try:
        return needs.incidents.get(incident_id).state not in FREED
    except PermanentError:
        return False


def _approvers(needs: Needs) -> dict[str, float]:
    return {"approvers_without_confirmation": float(not needs.mail.approvers())}


def _heartbeats(needs: Needs) -> dict[str, float]:
    """Jobs with pods and without a heartbeat; those that an open incident holds are expected to be silent."""
    now = needs.clock.now()
    running = {
        p.labels[JOB_UID_LABEL]: p.labels.get(JOB_NAME_LABEL, "")
        for p in needs.kubernetes.job_pods()
        if not p.leaving and p.started_at is not None and now - moment(p.started_at) > START_GRACE
    }
    for incident_id in needs.incidents.open_incidents():
        running.pop(needs.incidents.get(incident_id).job.uid, None)
    names = sorted(set(running.values()) - {""})
    since = now - timedelta(seconds=needs.settings.heartbeat_timeout_seconds)
    alive = needs.numbers.jobs_with(Metric.HEARTBEAT, names, since, now)
    silent = [n for n in names if n not in alive]
    unnamed = sum(not name for name in running.values())
    if silent or unnamed:
        logger.warning("jobs without a heartbeat", extra={"jobs": silent[:50], "unnamed": unnamed})
    return {"jobs_without_heartbeat": len(silent) + unnamed}


def _breaker(needs: Needs) -> dict[str, float]:
    return {"breaker_open": float(needs.controls.breaker().open)}
