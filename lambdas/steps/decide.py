"""The decision table again, with what contain and confirm found.

In: a CONTAINED or CONFIRMING incident. Out: its row and the next step: confirm, approve, release or human.
Touches nothing but the incident's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from training_agent.contract import Mode, gpu_subject, instance_subject

from ..domain.decision_table import Decision, Facts, Next, evaluate
from ..domain.decision_table import decide as decide_row
from ..domain.incident import CheckResult, Incident, State
from ..domain.world import HistoryEntry
from ..ports import Bus, Clock, Controls, Incidents
from ..settings import DecideSettings
from .outcome import StepResult, alarm_of, evidence_of, facts_of, findings_of, record
from .replace import INTERNAL

FAILED_ONCE = "; HyperPod failed inside when it was asked: look at the node before you approve again"


@dataclass(frozen=True, slots=True)
class Needs:
    settings: DecideSettings
    incidents: Incidents
    controls: Controls
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    incident = needs.incidents.get(incident_id)
    incident.to(State.DECIDED)  # raises, before history is written, where the flow has no such step
    alarm = alarm_of(needs.incidents, incident)
    facts = facts_of(needs.incidents, incident, alarm, needs.settings.mode, needs.controls.read())
    evidence = evidence_of(needs.incidents, incident, alarm)
    decision = decide_row(evidence, facts)
    # What joined an incident of several nodes may blame one of them: the others are not accused of it.
    blamed = evaluate(evidence if incident.node is not None else findings_of(alarm, incident), facts)
    if blamed.blames_node and not incident.synthetic:
        _remember(needs, incident, blamed.id)
    rows = incident.decided_rows
    if not rows or rows[-1] != decision.row.id:
        rows = (*rows, decision.row.id)
    decided = replace(
        incident,
        decision_row=decision.row.id,
        undecided=False,
        decided_rows=rows,
        decision_reason=decision.reason + (FAILED_ONCE if incident.tries.get(INTERNAL) else ""),
        decided_on=len(incident.joined),
        failures_seen=incident.failures,
    ).to(State.DECIDED)
    if decision.next is Next.APPROVE:  # a question of its own, with an id of its own
        asks = incident.asks + 1
        decided = replace(decided, asks=asks, asking=decision.action, approval_id=f"{incident.id}-{asks}")
    story = f"{decision.row.id} -> {decision.next.value}: {decision.reason}"
    record(needs, incident, _closing(decided, decision, facts), story)
    timeout = needs.settings.approval_timeout_seconds
    half = ceil(timeout / 2)  # then a reminder; the definition before waits for the whole at once
    return StepResult(decision.next.value, story, approval_timeout_seconds=timeout, patience_seconds=half)


_ENDS = {CheckResult.NODE_GONE: State.REPLACED_BY_HYPERPOD, CheckResult.STUCK: State.HEALTHCHECK_STUCK}


def _closing(incident: Incident, decision: Decision, facts: Facts) -> Incident:
    """Note the end that this decision leads to; an approval's end is known later."""
    if decision.next is Next.RELEASE:
        return replace(incident, closing=State.RELEASED)
    if decision.next is not Next.HUMAN:
        return replace(incident, closing=None)
    if facts.mode is Mode.OBSERVE and not incident.touched:
        closing = State.OBSERVED
    elif decision.row.blames_node and not facts.cordoned_by_us:
        closing = State.HUMAN_OVERRIDE
    elif facts.deep_check in _ENDS:
        closing = _ENDS[facts.deep_check]
    else:
        closing = State.HANDED_TO_HUMAN
    reason = decision.reason
    if facts.mode is Mode.OBSERVE and incident.touched:
        reason = (
            "the mode was lowered to observe after the suspect had been contained: what is held stays held"
        )
    return replace(incident, closing=closing, human_reason=reason)


def _remember(needs: Needs, incident: Incident, row: str) -> None:
    """History by instance and by GPU: the GPU's survives a replacement of its node."""
    for target in incident.targets:
        for subject in (instance_subject(target.instance_id), *map(gpu_subject, target.gpu_uuids)):
            needs.incidents.remember(HistoryEntry(subject, incident.id, row, incident.opened_at))
