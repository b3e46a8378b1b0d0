"""Replace one node, in one call, after one approval. IAM cannot limit node ids: this code is the only guard.

In: an incident with an APPROVED row. Out: "replaced" (issued, `verify` is next), "busy" (another replacement,
the hourly slot, a check that still runs), "reopened" (asked anew: new evidence changes the row, the approval
expired in the queue, HyperPod failed inside), or a human. The callback's payload is ignored; row, evidence,
world, breaker, mode and budget are read again (`replace_guards`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from training_agent.contract import Mode

from ..domain.errors import (
    BreakerError,
    ConflictError,
    NeedsHumanError,
    OutcomeUnknownError,
    RefusedError,
    ThrottledError,
)
from ..domain.incident import Effect, EffectState, Incident, State
from ..domain.policy import BudgetAnswer
from ..domain.times import stamp
from ..domain.world import ClusterNode, ReplaceAnswer
from ..ports import Approvals, Bus, Clock, Cluster, Controls, Incidents, Kubernetes, Replacer
from ..settings import ReplaceSettings
from .effects import CONFLICTS, permit
from .outcome import StepResult, amend, record
from .replace_guards import (
    all_members,
    approved_evidence,
    approved_too_long_ago,
    decides_otherwise,
    is_checked,
    limit_reached,
    require_breaker_closed,
    require_same_world,
)

REPLACE_LOCK = "replacement"  # one in flight per cluster
EFFECT = "replace"
REFUSED = "refused: "  # an effect's result that starts so: the service did nothing
WAIT_SECONDS = 60
MAX_WAITS = 1440  # a day of waiting for the slot; the approval expires long before
MAX_REFUSALS = 5  # InUse, InvalidStatus, throttled: wait, look again, call again
INTERNAL = "InternalServerError"  # once: asked anew
_COME_AGAIN = frozenset({"InstanceIdInUse", "InvalidInstanceStatus", "Throttled", "NotReached"})
_MEANING = {
    "InstanceIdNotFound": "HyperPod does not know the instance: gone, or never in this cluster",
    INTERNAL: "HyperPod failed inside a second time",
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
    require_breaker_closed(needs)
    if approved_too_long_ago(needs, incident):
        return _reopened(needs, incident, "the approval expired while it waited for its turn: asked anew")
    evidence = approved_evidence(needs, incident)
    if decides_otherwise(needs, incident):
        story = "evidence has come in since that changes the decision row: contained and decided again"
        return _reopened(needs, incident, story)
    if not needs.controls.lock(REPLACE_LOCK, incident.id):
        return _busy(needs, incident, "another replacement is in flight in this cluster")
    members = all_members(needs)
    if is_checked(incident, members):
        needs.controls.unlock(REPLACE_LOCK, incident.id)
        return _busy(needs, incident, "a deep health check runs on the node")
    require_same_world(needs, incident, members)
    answer = limit_reached(needs, incident, members)
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


def _reopened(needs: Needs, incident: Incident, story: str) -> StepResult:
    """A try before this one may have the lock: nobody else is to wait for it while a human is asked."""
    needs.controls.unlock(REPLACE_LOCK, incident.id)
    record(needs, incident, incident.again(), story)
    return StepResult("reopened", story)


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
    if code == INTERNAL and not incident.tries.get(code):
        story = "HyperPod failed inside: nothing was replaced, and a human is asked once more"
        return _reopened(needs, incident.tried("refused").tried(code), story)
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
