"""What every step answers to the state machine, and how an incident's progress is recorded.

In: the incident before and after. Out: the saved row, an audit entry, an "SDC Incident State Changed" event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from training_agent.contract import Alarm, ContractError, Finding, Mode, decode

from ..domain import decision_table, findings
from ..domain.errors import ConflictError, NeedsHumanError
from ..domain.incident import Incident, State, end_for, evidence_hash
from ..domain.policy import Control, effective_mode
from ..domain.times import moment, stamp
from ..observability import MetricUnit, measure
from ..ports import Bus, Clock, Incidents

WINDOW = timedelta(minutes=10)  # in which more nodes of one job than GPUs can explain are no GPU's fault
DEFAULT_APPROVAL_TIMEOUT_SECONDS = 3600  # only `decide` sets the real one, right before the wait for a human
ENDED_IN = "incidents_ended_in_"  # + the terminal state's name in lower case: a metric
MAX_STORY = 2000  # characters: a state's output and an execution's history are bounded


@dataclass(frozen=True, slots=True)
class Took:
    """How long something took that people wait for: one line of the dashboard."""

    name: str  # "seconds_to_contain", "seconds_to_approve" or "seconds_to_replace"
    seconds: float
    cluster: str

    @classmethod
    def between(cls, name: str, begun: str | None, now: datetime, incident: Incident) -> Took | None:
        """From a stored moment to now; None when it is not known, and for a fire drill."""
        if begun is None or incident.synthetic:
            return None
        return cls(name, max(0.0, (now - moment(begun)).total_seconds()), incident.cluster)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`outcome` picks the next state; `story` is one sentence for the reader of the history."""

    outcome: str
    story: str
    wait_seconds: int = 0
    approval_timeout_seconds: int = DEFAULT_APPROVAL_TIMEOUT_SECONDS  # read by the definition before
    took: Took | None = None  # for the metrics, not for the state machine
    patience_seconds: int = DEFAULT_APPROVAL_TIMEOUT_SECONDS  # of one wait; a reminder lies between two

    def plain(self, incident_id: str) -> dict[str, object]:
        return {
            "incident_id": incident_id,
            "outcome": self.outcome,
            "story": self.story[:MAX_STORY],
            "wait_seconds": self.wait_seconds,
            "approval_timeout_seconds": self.approval_timeout_seconds,
            "patience_seconds": self.patience_seconds,
        }


class Recorder(Protocol):
    """Part of every step's needs."""

    @property
    def incidents(self) -> Incidents: ...
    @property
    def bus(self) -> Bus: ...
    @property
    def clock(self) -> Clock: ...


def record(needs: Recorder, before: Incident, after: Incident, story: str) -> Incident:
    """Save; when the state changed, write the audit entry and tell the bus; an end is counted."""
    if after == before:
        return before
    saved = needs.incidents.save(replace(after, updated_at=stamp(needs.clock.now())))
    if after.state is not before.state:
        needs.incidents.audit(saved.id, f"state {saved.state.value}", story, needs.clock.now())
        needs.bus.state_changed(news(saved, before.state.value, story))
        if saved.state.terminal:
            measure(ENDED_IN + saved.state.value.lower(), 1, saved.cluster, MetricUnit.Count)
    return saved


def news(incident: Incident, previous: str | None, story: str) -> dict[str, object]:
    """Detail of an "SDC Incident State Changed" event."""
    return {
        "incident_id": incident.id,
        "state": incident.state.value,
        "previous": previous,
        "cluster": incident.cluster,
        "job": incident.job.name,
        "node": incident.node,
        "instance_id": incident.instance_id,
        "decision_row": incident.decision_row,
        "story": story,
    }


AMENDS = 5


def amend(needs: Recorder, incident_id: str, change: Callable[[Incident], Incident]) -> Incident:
    """Change the row whatever others wrote in between: for what must not be lost after an effect.

    Raises:
        ConflictError: others kept writing.
    """
    for left in reversed(range(AMENDS)):
        incident = needs.incidents.get(incident_id)
        changed = change(incident)
        if changed == incident:
            return incident
        try:
            return needs.incidents.save(replace(changed, updated_at=stamp(needs.clock.now())))
        except ConflictError:
            if not left:
                raise
    raise AssertionError("unreachable")


def to_human(needs: Recorder, incident_id: str, error: Exception) -> StepResult:
    """Outcome "human", with end and reason kept for the notice that `request_approval` sends."""
    reason, end = str(error)[:MAX_STORY], end_for(error)
    incident = needs.incidents.get(incident_id)
    if not incident.state.terminal and incident.human_reason != reason:
        amend(needs, incident_id, lambda i: replace(i, human_reason=reason, closing=end))
        needs.incidents.audit(incident_id, "needs a human", reason, needs.clock.now())
    return StepResult("human", reason)


def alarm_of(incidents: Incidents, incident: Incident) -> Alarm:
    """The stored alarm.

    Raises:
        NeedsHumanError: the stored text is not the one the incident was opened with, or no alarm.
    """
    text = incidents.alarm(incident.id)
    if evidence_hash(text) != incident.evidence_hash:
        raise NeedsHumanError("the stored alarm was changed after it came in: nothing is done on its word")
    try:
        return decode(Alarm, text)
    except ContractError as e:  # of a metric alone (`details_missing`), or of another version
        raise NeedsHumanError(f"what the incident was opened with is no alarm: {e}") from None


def findings_of(alarm: Alarm, incident: Incident) -> tuple[Finding, ...]:
    return findings.of_node(alarm, incident.node)


def joined_by(incidents: Incidents, incident: Incident) -> tuple[Incident, ...]:
    """Those whose evidence is decided with here, and nowhere else."""
    others = map(incidents.get, incident.joined)
    return tuple(one for one in others if not is_successor(incident, one))


CORDON = "cordon:"  # + the node: the effect's row


def with_cordons(incidents: Incidents, incident: Incident) -> Incident:
    """As people are to be told: also what a containment cordoned, or may have, that broke off before its end.

    The effect's row is written before the node is; the incident's own only after all of them.
    """
    begun = {e.name for e in incidents.effects_of(incident.id)}
    targets = (
        replace(t, cordoned_by_us=t.cordoned_by_us or CORDON + t.node in begun) for t in incident.targets
    )
    return replace(incident, targets=tuple(targets))


def is_successor(incident: Incident, other: Incident) -> bool:
    """Does `other`, which names one node, wait for what suspects several without naming any?

    It takes the node over when that has ended, and decides by itself.
    """
    return incident.node is None and other.node is not None and other.state is not State.JOINED


def evidence_of(incidents: Incidents, incident: Incident, alarm: Alarm) -> tuple[Finding, ...]:
    """Findings of the incident, and of those that were located on the same instance and joined it."""
    found = findings_of(alarm, incident)
    for joined in joined_by(incidents, incident):
        found += findings_of(alarm_of(incidents, joined), joined)
    return found


def facts_of(
    incidents: Incidents, incident: Incident, alarm: Alarm, deployed: Mode, control: Control
) -> decision_table.Facts:
    """All that is known by now, for the decision table."""
    opened = moment(incident.opened_at)
    past = incidents.history(f"job#{incident.job.uid}", stamp(opened - WINDOW))
    named = findings.most_named([(moment(e.at), e.what) for e in past], opened, WINDOW)
    return decision_table.Facts(
        nodes=min(alarm.nodes, incident.nodes),  # never on the alarm's word alone: T2
        nodes_named=max(incident.nodes_named, named),
        second_read=incident.second_read,
        repeats=True if incident.joined else incident.repeats,
        deep_check=incident.deep_check.result,
        cordoned_by_us=bool(incident.targets) and all(t.cordoned_by_us for t in incident.targets),
        mode=effective_mode(deployed, control),
        audit_failed=incident.failures > 0,
        telemetry_read=incident.telemetry is not None,
        one_node=incident.node is not None,
        succeeded=any(is_successor(incident, one) for one in map(incidents.get, incident.joined)),
    )
