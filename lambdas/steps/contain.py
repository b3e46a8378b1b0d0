"""Keep the suspect from computing: hold, cordon, evict, as the contain column of its row says.

In: a LOCATED incident. Out: quarantine rows (agents hold by them), an annotated cordon, this job's pods moved
off the node; `decide` is next. Observe mode writes the mode row (as `register` does) and touches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

from training_agent.contract import Mode, gpu_subject, instance_subject, job_subject, occurrence_key

from ..domain.decision_table import Contain, Row, evaluate
from ..domain.errors import NeedsHumanError
from ..domain.incident import Incident, State, Target
from ..domain.policy import effective_mode
from ..domain.times import moment, stamp
from ..domain.world import HistoryEntry
from ..ports import Bus, Clock, Controls, Incidents, Kubernetes, Quarantine
from ..settings import ContainSettings
from .effects import Permitted, cordon, evict_job, permit, predecessor, require_admission_policy
from .outcome import StepResult, Took, alarm_of, evidence_of, facts_of, joined_by, record

NODES_PER_DAY = 3  # different nodes that one job may have contained by its word
MAX_OCCURRENCES = 1000  # the newest that an incident sets free: a row of the table is bounded
NODES_SHARE_PER_DAY = 0.05  # of the job's nodes, where that is more


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ContainSettings
    incidents: Incidents
    controls: Controls
    quarantine: Quarantine
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    incident = needs.incidents.get(incident_id)
    incident.to(State.CONTAINED)  # raises, before anything is touched, where the flow has no such step
    alarm = alarm_of(needs.incidents, incident)
    control = needs.controls.read()
    mode = effective_mode(needs.settings.mode, control)
    row = evaluate(
        evidence_of(needs.incidents, incident, alarm),
        facts_of(needs.incidents, incident, alarm, needs.settings.mode, control),
    )
    needs.quarantine.put_mode(mode)
    if mode is Mode.OBSERVE:
        story = f"observe mode: would have contained by '{row.contain.value}' ({row.id})"
        record(needs, incident, incident.to(State.CONTAINED), story)
        return StepResult("contained", story)
    if incident.synthetic:
        story = f"fire drill: would have contained by '{row.contain.value}' ({row.id})"
        record(needs, incident, incident.to(State.CONTAINED), story)
        return StepResult("contained", story)
    permit(needs, Mode.CONTAIN, f"containment by '{row.contain.value}'")
    if row.contain in (Contain.CORDON, Contain.ISOLATE):
        _require_quota(needs, incident, min(alarm.nodes, incident.nodes))
        for target in incident.targets:
            require_admission_policy(needs, target)
    # Noted first: a containment that breaks off half-way has touched something all the same.
    begun = record(needs, incident, replace(incident, touched=True, undecided=True), "containment begins")
    targets, story = _contain(needs, begun, row)
    record(needs, begun, replace(begun, targets=targets).to(State.CONTAINED), story)
    since = None if incident.touched else incident.opened_at  # once: not for second evidence
    took = Took.between("seconds_to_contain", since, needs.clock.now(), incident)
    return StepResult("contained", story, took=took)


def _require_quota(needs: Needs, incident: Incident, nodes: int) -> None:
    """A trainer that accuses its peers, one after the other or all at once, is not believed without end.

    Counted are the nodes that it named, and those that were contained because it named nobody.

    Raises:
        NeedsHumanError: these are more in a day than bad GPUs can explain.
    """
    since = stamp(moment(incident.opened_at) - timedelta(days=1))
    unnamed = f"suspects#{incident.job.uid}"
    earlier = (e for s in (f"job#{incident.job.uid}", unnamed) for e in needs.incidents.history(s, since))
    here = {t.node for t in incident.targets}
    named = here | {e.what for e in earlier}
    if len(named) > max(NODES_PER_DAY, NODES_SHARE_PER_DAY * nodes):
        raise NeedsHumanError(f"this job accused {len(named)} nodes in a day: nothing was touched")
    for node in sorted(here) if incident.node is None else ():
        needs.incidents.remember(HistoryEntry(unnamed, incident.id, node, incident.opened_at))


def subjects(incident: Incident) -> tuple[str, ...]:
    """Quarantine rows of an incident: its instances and accused GPUs, and the job when nobody is blamed."""
    named = [
        s for t in incident.targets for s in (instance_subject(t.instance_id), *map(gpu_subject, t.gpu_uuids))
    ]
    return (*named, *((job_subject(incident.job.uid),) if incident.node is None else ()))


def occurrences(incidents: Incidents, incident: Incident) -> tuple[str, ...]:
    """What its quarantine rows carry, as the agent's entries do: each alarm in each attempt, newest last.

    All that came in while it was open, also what it did not decide with: no job waits for what has ended.
    """
    seen = incidents.occurrences(incident.id)[-MAX_OCCURRENCES:]
    known = (
        (one.delivery_key, attempt)
        for one in (incident, *joined_by(incidents, incident))
        for attempt in (one.job.attempt, *one.restarts)
    )
    return tuple(occurrence_key(*one) for one in (*(k for k in known if k not in seen), *seen))


class Freeing(Permitted, Protocol):
    @property
    def incidents(self) -> Incidents: ...
    @property
    def quarantine(self) -> Quarantine: ...
    @property
    def clock(self) -> Clock: ...


def release_quarantine(needs: Freeing, incident: Incident) -> list[str]:
    """Let go all that it holds; the subjects that another incident holds on to.

    Raises:
        HaltedError: the kill switch is on, or the mode too low.
    """
    permit(needs, Mode.CONTAIN, "release of the quarantine")
    keys, now = occurrences(needs.incidents, incident), needs.clock.now()
    held = []
    for subject in subjects(incident):
        if not needs.quarantine.release(subject, keys, incident.id, now):
            held.append(subject)
    return held


def _inherit(needs: Needs, incident: Incident, former: Incident, target: Target) -> None:
    """What an ended incident left contained is this one's to decide: hold and accusation pass on."""
    subject = instance_subject(target.instance_id)
    row = former.decision_row or "X0"
    needs.incidents.remember(HistoryEntry(subject, former.id, row, former.opened_at))
    keys, now = occurrences(needs.incidents, former), needs.clock.now()
    for held in {subject, *map(gpu_subject, target.gpu_uuids)} & set(subjects(former)):
        needs.quarantine.release(held, keys, former.id, now)  # ours stands: nothing is free
    needs.incidents.audit(incident.id, "takes over", f"{target.node} of incident {former.id}", now)


def _contain(needs: Needs, incident: Incident, row: Row) -> tuple[tuple[Target, ...], str]:
    if row.contain is Contain.NOTHING:
        release_quarantine(needs, incident)
        return incident.targets, f"{row.id}: nothing is contained, the job need not wait"
    now, keys = needs.clock.now(), occurrences(needs.incidents, incident)
    permit(needs, Mode.CONTAIN, "hold")  # again: many nodes' dry runs take their time
    for subject in subjects(incident):
        needs.quarantine.hold(subject, keys, incident.id, now)
    if row.contain is Contain.HOLD:
        return incident.targets, f"{row.id}: the job is held"
    if row.blames_node and not incident.targets:
        raise NeedsHumanError("no proven node to contain: nothing was touched")
    done, stories = [], []
    for target in incident.targets:
        former = predecessor(needs, incident, target)
        if former is not None:
            _inherit(needs, incident, former, target)
        mine = cordon(needs, incident, target, f"{row.id}: {row.meaning}", former)
        stories.append(f"{target.node} {'cordoned' if mine else 'was cordoned before, by somebody else'}")
        if row.contain is Contain.ISOLATE:
            evicted, others = evict_job(needs, incident, target)
            stories.append(f"{evicted} of the job's pods evicted")
            if others:
                stories.append(f"left alone: pods of other jobs ({', '.join(others)})")
        done.append(replace(target, cordoned_by_us=mine))
    return tuple(done), f"{row.id}: " + ", ".join(stories)
