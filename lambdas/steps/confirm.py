"""Ambiguous rows: second confirmation, history, telemetry, a targeted audit's result, a deep health check.

In: a DECIDED incident whose row wants confirmation, or one whose check a human approved. Out: "waiting" (the
state machine comes back) or "confirmed", and `decide` runs again. The check itself: `deep_check.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from training_agent.contract import Alarm, gpu_subject, instance_subject

from ..domain.decision_table import Confirm, Facts, Row, evaluate, wants_check
from ..domain.errors import PipelineError
from ..domain.incident import CheckResult, Incident, State
from ..domain.telemetry import lines
from ..domain.times import moment
from ..ports import Approvals, Bus, Clock, Cluster, Controls, Incidents, Kubernetes, Telemetry
from ..settings import ConfirmSettings
from . import deep_check
from .outcome import StepResult, alarm_of, evidence_of, facts_of, record

WAIT_SECONDS = 60
LONG_WAIT_SECONDS = 120  # after QUICK_POLLS: an execution's history must stay far from its limit of events
QUICK_POLLS = 30
CHECK_LOCK = deep_check.CHECK_LOCK
CHECK_LABEL = deep_check.CHECK_LABEL
MAX_WAITS_FOR_START = deep_check.MAX_WAITS_FOR_START


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ConfirmSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    cluster: Cluster
    kubernetes: Kubernetes
    telemetry: Telemetry
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    before = needs.incidents.get(incident_id)
    alarm = alarm_of(needs.incidents, before)
    row, facts = _judge(needs, before, alarm)
    before.to(
        State.CONFIRMING
    )  # raises where the flow has no such step; the state is written with the result
    incident = before
    if Confirm.SECOND_CONFIRMATION in row.confirm:
        story = "the agent's second confirmation was read"
        record(needs, before, replace(incident, second_read=True).to(State.CONFIRMING), story)
        return StepResult("confirmed", story)
    if Confirm.HISTORY in row.confirm and incident.repeats is None:
        incident = replace(incident, repeats=_repeats(needs.incidents, incident))
    if Confirm.TELEMETRY in row.confirm and incident.telemetry is None:
        incident = _with_telemetry(needs, incident, alarm)
    facts = replace(facts, repeats=bool(incident.repeats or facts.repeats))
    if not wants_check(row, facts):
        story = f"history read: {'accused before' if incident.repeats else 'nothing before'}"
        needs.controls.unlock(CHECK_LOCK, incident.id)
        record(needs, before, incident.to(State.CONFIRMING), story)
        return StepResult("confirmed", story)
    incident = deep_check.go_on(needs, incident, row)
    check = incident.deep_check
    waiting = check.result in (CheckResult.NOT_RUN, CheckResult.RUNNING)
    story = f"deep health check: {check.result.value}" + (f" ({check.note})" if check.note else "")
    record(needs, before, incident.to(State.CONFIRMING), story)
    if waiting:
        wait = WAIT_SECONDS if check.polls < QUICK_POLLS else LONG_WAIT_SECONDS
        return StepResult("waiting", story, wait_seconds=wait)
    needs.controls.unlock(CHECK_LOCK, incident.id)
    return StepResult("confirmed", story)


def _judge(needs: Needs, incident: Incident, alarm: Alarm) -> tuple[Row, Facts]:
    facts = facts_of(needs.incidents, incident, alarm, needs.settings.mode, needs.controls.read())
    return evaluate(evidence_of(needs.incidents, incident, alarm), facts), facts


def _repeats(incidents: Incidents, incident: Incident) -> bool:
    """Was this instance, or one of these GPUs (also in another node), accused by another incident?"""
    subjects = [
        s for t in incident.targets for s in (instance_subject(t.instance_id), *map(gpu_subject, t.gpu_uuids))
    ]
    return any(e.incident_id != incident.id for s in subjects for e in incidents.history(s))


def _with_telemetry(needs: Needs, incident: Incident, alarm: Alarm) -> Incident:
    """What the GPUs' counters say around the alarm; their absence is said, never taken for health."""
    gpus = tuple(g for t in incident.targets for g in t.gpu_uuids)
    try:
        readings = needs.telemetry.around(gpus, moment(alarm.time)) if gpus else None
    except PipelineError as e:
        said = f"telemetry could not be read ({e}): that says nothing about the node"
        return replace(incident, telemetry=(said,))
    return replace(incident, telemetry=lines(readings), readings=readings or ())
