"""Replace one node, in one call, after one approval. IAM cannot limit node ids: this code is the only guard.

In: an incident with an APPROVED row. Out: "replaced" (issued, `verify` is next), "busy" (another replacement,
the hourly slot), "reopened" (new evidence changes the row), or a human. The callback's payload is ignored;
row, evidence, world, breaker, mode and budget are read again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from training_agent.contract import Mode

from ..domain.approval import require_approved
from ..domain.decision_table import evaluate
from ..domain.errors import (
    BreakerError,
    ConflictError,
    HumanOverrideError,
    NeedsHumanError,
    OutcomeUnknownError,
    PipelineError,
    RefusedError,
    ReplacedByHyperPodError,
    ThrottledError,
    WorldChangedError,
)
from ..domain.incident import CheckResult, Effect, EffectState, Incident, State
from ..domain.policy import Budget, BudgetAnswer, within_budget
from ..domain.times import moment, stamp
from ..domain.world import ClusterNode, ReplaceAnswer
from ..ports import Approvals, Bus, Clock, Cluster, Controls, Incidents, Kubernetes, Replacer
from ..settings import ReplaceSettings
from .effects import CONFLICTS, ours, permit
from .outcome import StepResult, alarm_of, amend, evidence_of, facts_of, record

REPLACE_LOCK = "replacement"  # one in flight per cluster
EFFECT = "replace"
REFUSED = "refused: "  # an effect's result that starts so: the service did nothing
WAIT_SECONDS = 60
MAX_WAITS = 1440  # a day of waiting for the slot; the approval expires long before
MAX_REFUSALS = 5  # InUse, InvalidStatus, throttled: wait, look again, call again
_COME_AGAIN = frozenset({"InstanceIdInUse", "InvalidInstanceStatus", "Throttled", "NotReached"})
_MEANING = {
    "InstanceIdNotFound": "HyperPod does not know the instance: gone, or never in this cluster",
    "InternalServerError": "HyperPod failed inside; approve again after looking at the node",
}


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ReplaceSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    cluster: Cluster
    replacer: Replacer
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    """Begin again, from what stands now, when evidence was written to the incident in between.

    The state machine does not retry this step, and nothing was called: a call leaves its row before it is
    made, and whoever sees that row looks and never calls again.
    """
    for left in reversed(range(CONFLICTS)):
        try:
            return _run(needs, incident_id)
        except ConflictError:
            if not left:
                raise
    raise AssertionError("unreachable")


def _run(needs: Needs, incident_id: str) -> StepResult:
    incident = needs.incidents.get(incident_id)
    attempt = incident.tries.get("refused", 0)
    effect = needs.incidents.effect(incident.id, effect_name(attempt))
    if effect is not None:
        return _reconcile(needs, incident, effect)
    if incident.synthetic:
        return _drilled(needs, incident)
    _require_breaker_closed(needs)
    evidence = _require_approved(needs, incident)
    if _decides_otherwise(needs, incident):
        story = "evidence has come in since that changes the decision row: contained and decided again"
        record(needs, incident, incident.again(), story)
        return StepResult("reopened", story)
    if not needs.controls.lock(REPLACE_LOCK, incident.id):
        return _busy(needs, incident, "another replacement is in flight in this cluster")
    members = _members(needs)
    _require_same_world(needs, incident, members)
    answer = _budget(needs, incident, members)
    if answer == BudgetAnswer.HOUR:
        needs.controls.unlock(REPLACE_LOCK, incident.id)
        return _busy(needs, incident, "the hourly slot for replacements is taken")
    if answer == BudgetAnswer.DAY:
        reason = f"the budget of replacements of {incident.targets[0].group} in 24 hours is spent"
        needs.controls.open_breaker(reason, incident.id, needs.clock.now())
        raise BreakerError(f"{reason}: nothing was replaced, the breaker is open until a human closes it")
    return _issue(needs, incident, members, evidence, effect_name(attempt))


def effect_name(attempt: int) -> str:
    """Row of the n-th call, counted by refusals; each is called at most once."""
    return EFFECT if attempt == 0 else f"{EFFECT}:{attempt}"


def requested(incidents: Incidents, incident: Incident) -> bool:
    """Was a replacement requested, or may it have been? Its rows say so: the call's answer can be lost."""
    calls = (e for e in incidents.effects_of(incident.id) if e.name.partition(":")[0] == EFFECT)
    return any(not e.result.startswith(REFUSED) for e in calls)


def in_flight(incidents: Incidents, incident: Incident) -> bool:
    """Was one requested whose end nobody has seen?"""
    seen = incident.new_instance_id is not None or incident.closing is State.TERMINATED_NO_DEMAND
    return not seen and requested(incidents, incident)


class Responsible(Protocol):
    @property
    def incidents(self) -> Incidents: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def clock(self) -> Clock: ...


def let_go(needs: Responsible, incident: Incident) -> bool:
    """Free the lock; what is in flight then keeps others away by the breaker. True when something is.

    The breaker opens first: between the two nobody else can begin.
    """
    flying = in_flight(needs.incidents, incident)
    if flying:
        reason = f"a replacement of {incident.instance_id} was requested and its end was not seen"
        needs.controls.open_breaker(reason, incident.id, needs.clock.now())
    needs.controls.unlock(REPLACE_LOCK, incident.id)
    return flying


def _drilled(needs: Needs, incident: Incident) -> StepResult:
    story = "fire drill: everything but the replacement was walked through"
    record(needs, incident, replace(incident, closing=State.CLOSED), story)
    return StepResult("drilled", story)


def _require_breaker_closed(needs: Needs) -> None:
    breaker = needs.controls.breaker()
    if breaker.open:
        raise BreakerError(f"the breaker is open ({breaker.reason}): nothing was replaced")


def _decides_otherwise(needs: Needs, incident: Incident) -> bool:
    """Judge all evidence again, row S1 first: is the row still the one that was approved?"""
    alarm = alarm_of(needs.incidents, incident)
    facts = facts_of(needs.incidents, incident, alarm, needs.settings.mode, needs.controls.read())
    row = evaluate(evidence_of(needs.incidents, incident, alarm), facts)
    return row.id != incident.decision_row


def _members(needs: Needs) -> tuple[ClusterNode, ...]:
    """All pages, or none: half a cluster is a wrong denominator."""
    try:
        return needs.cluster.nodes()
    except PipelineError as e:
        raise NeedsHumanError(f"the cluster's nodes cannot be read ({e}): nothing was replaced") from e


def _require_approved(needs: Needs, incident: Incident) -> str:
    """Re-read the row; returns the hash of the evidence as it is stored now."""
    alarm_of(needs.incidents, incident)  # raises when the stored alarm is not the hashed one
    if incident.state not in (State.AWAITING_APPROVAL, State.REPLACING):
        raise NeedsHumanError(f"the incident is {incident.state.value}, not approved: nothing was replaced")
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    require_approved(approval, incident, incident.evidence_hash, needs.clock.now())
    return incident.evidence_hash


def _require_same_world(needs: Needs, incident: Incident, members: tuple[ClusterNode, ...]) -> None:
    """Same instance, same launch, Running, same group, still cordoned by us."""
    target = incident.targets[0]
    member = next((n for n in members if n.instance_id == target.instance_id), None)
    if member is None and incident.deep_check.result is not CheckResult.NOT_RUN:
        raise ReplacedByHyperPodError(f"{target.instance_id} vanished after its check: nothing was replaced")
    if member is None:
        raise WorldChangedError(f"{target.instance_id} is not in the cluster any more: nothing was replaced")
    if moment(member.launch_time) != moment(target.launch_time) or member.group != target.group:
        raise WorldChangedError(
            f"{target.instance_id} was launched again since the alarm: nothing was replaced"
        )
    if member.status != "Running":
        raise WorldChangedError(f"{target.instance_id} is {member.status}, not Running: nothing was replaced")
    node = needs.kubernetes.node(target.node)
    if node is None or not ours(node, incident):
        raise HumanOverrideError(
            f"{target.node} is not cordoned by this incident any more: nothing was replaced"
        )


def _budget(needs: Needs, incident: Incident, members: tuple[ClusterNode, ...]) -> str:
    s, group = needs.settings, incident.targets[0].group
    running = sum(1 for n in members if n.group == group and n.status == "Running")
    budget = Budget(s.replacements_per_day, s.replacement_budget_percent, s.replacements_per_hour)
    if running == 0:
        raise NeedsHumanError(f"no instance of {group} is Running: nothing was replaced")
    earlier = needs.controls.replacements(group).items()
    others = tuple(at for holder, at in earlier if holder != incident.id)
    return within_budget(budget, running, others, needs.clock.now())


def _issue(
    needs: Needs, before: Incident, members: tuple[ClusterNode, ...], evidence: str, effect: str
) -> StepResult:
    """Permission, INTENT, the call, RESULT; in this order."""
    target = before.targets[0]
    now = needs.clock.now()
    group = tuple(n.instance_id for n in members if n.group == target.group)
    replacing = replace(before, known_instances=group).to(State.REPLACING)
    story = f"replacement of {target.instance_id} is being requested (evidence {evidence[:12]})"
    incident = record(needs, before, replacing, story)
    permit(needs, Mode.REPLACE, f"replacement of {target.instance_id}")
    needs.controls.count_replacement(target.group, incident.id, now)
    if not needs.incidents.intend(incident.id, effect, now):
        standing = needs.incidents.effect(incident.id, effect)
        assert standing is not None
        return _reconcile(needs, incident, standing)
    try:
        answer = needs.replacer.replace(target.instance_id)
    except ThrottledError as e:
        answer = ReplaceAnswer(accepted=False, code="Throttled", message=str(e))
    except RefusedError as e:
        answer = ReplaceAnswer(accepted=False, code=e.code or "Refused", message=str(e))
    except OutcomeUnknownError as e:
        needs.incidents.conclude(incident.id, effect, "ISSUED_UNKNOWN", needs.clock.now())
        return _issued(needs, incident, f"ISSUED_UNKNOWN: {e}; the world will tell, it is never called again")
    result = "accepted" if answer.accepted else REFUSED + answer.code
    needs.incidents.conclude(incident.id, effect, result, needs.clock.now())
    needs.incidents.audit(incident.id, effect, f"{result} {answer.message}".strip(), needs.clock.now())
    if answer.accepted:
        return _issued(needs, incident, f"HyperPod accepted the replacement of {target.instance_id}")
    return _refused(needs, incident, answer.code, answer.message)


def _issued(needs: Needs, incident: Incident, story: str) -> StepResult:
    now = stamp(needs.clock.now())
    amend(needs, incident.id, lambda i: i if i.issued_at else replace(i, issued_at=now))
    return StepResult("replaced", story)


def _refused(needs: Needs, incident: Incident, code: str, message: str = "") -> StepResult:
    """Nothing was done. Some codes pass by themselves; the others need a person. Never another node id."""
    needs.controls.unlock(REPLACE_LOCK, incident.id)
    refused = amend(needs, incident.id, lambda i: i.tried("refused"))
    if code in _COME_AGAIN and refused.tries["refused"] < MAX_REFUSALS:
        return StepResult("busy", f"HyperPod refused for now: {code}", wait_seconds=WAIT_SECONDS)
    meaning = _MEANING.get(code, f"HyperPod refused: {code} {message}".strip())
    raise NeedsHumanError(f"{meaning}: nothing was replaced")


def _reconcile(needs: Needs, incident: Incident, effect: Effect) -> StepResult:
    """An effect's row stands: the call was made or may have been. Look, never call again."""
    if effect.result.startswith(REFUSED):
        return _refused(needs, incident, effect.result.removeprefix(REFUSED))
    if effect.state is EffectState.RESULT:
        return _issued(needs, incident, f"requested before ({effect.result})")
    target = incident.targets[0]
    member = next((n for n in needs.cluster.nodes() if n.instance_id == target.instance_id), None)
    needs.incidents.conclude(incident.id, effect.name, "ISSUED_UNKNOWN", needs.clock.now())
    seen = "gone" if member is None else member.status
    return _issued(
        needs, incident, f"ISSUED_UNKNOWN: interrupted at the call; {target.instance_id} is {seen}"
    )


def _busy(needs: Needs, incident: Incident, story: str) -> StepResult:
    if incident.tries.get("busy", 0) >= MAX_WAITS:
        raise NeedsHumanError(f"{story}, for too long: nothing was replaced")
    needs.incidents.save(incident.tried("busy"))
    return StepResult("busy", story, wait_seconds=WAIT_SECONDS)
