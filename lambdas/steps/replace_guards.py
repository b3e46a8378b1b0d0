"""What must hold right before a replacement, read anew each time. Used by `replace`; has no effect itself.

In: an incident and the world. Out: nothing, or the error that stops it; what waits and what is asked anew.
"""

from __future__ import annotations

from typing import Protocol

from training_agent.contract import instance_id_of

from ..domain.approval import Answer, require_approved
from ..domain.decision_table import evaluate
from ..domain.errors import (
    BreakerError,
    HumanOverrideError,
    NeedsHumanError,
    PipelineError,
    ReplacedByHyperPodError,
    WorldChangedError,
)
from ..domain.incident import CheckResult, Incident, State
from ..domain.policy import Budget, within_budget
from ..domain.times import moment
from ..domain.world import ClusterNode
from ..ports import Approvals, Clock, Cluster, Controls, Incidents, Kubernetes
from ..settings import ReplaceSettings
from .deep_check import IN_PROGRESS
from .effects import ours
from .outcome import alarm_of, evidence_of, facts_of


class Guarded(Protocol):
    @property
    def settings(self) -> ReplaceSettings: ...
    @property
    def incidents(self) -> Incidents: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def kubernetes(self) -> Kubernetes: ...
    @property
    def clock(self) -> Clock: ...


def require_breaker_closed(needs: Guarded) -> None:
    breaker = needs.controls.breaker()
    if breaker.open:
        raise BreakerError(f"the breaker is open ({breaker.reason}): nothing was replaced")


def approved_too_long_ago(needs: Guarded, incident: Incident) -> bool:
    """A yes that only the queue outlived: nothing is done on it, and the human is asked once more."""
    if not incident.tries.get("busy") or not incident.approval_id:
        return False
    approval = needs.approvals.get(incident.approval_id)
    approved = approval is not None and approval.decided and approval.answer is Answer.APPROVE
    return approved and approval is not None and approval.expired(needs.clock.now())


def approved_evidence(needs: Guarded, incident: Incident) -> str:
    """Re-read the row; returns the hash of the evidence as it is stored now."""
    alarm_of(needs.incidents, incident)  # raises when the stored alarm is not the hashed one
    if incident.state not in (State.AWAITING_APPROVAL, State.REPLACING):
        raise NeedsHumanError(f"the incident is {incident.state.value}, not approved: nothing was replaced")
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    require_approved(approval, incident, incident.evidence_hash, needs.clock.now())
    return incident.evidence_hash


def decides_otherwise(needs: Guarded, incident: Incident) -> bool:
    """Judge all evidence again, row S1 first: is the row still the one that was approved?"""
    alarm = alarm_of(needs.incidents, incident)
    facts = facts_of(needs.incidents, incident, alarm, needs.settings.mode, needs.controls.read())
    row = evaluate(evidence_of(needs.incidents, incident, alarm), facts)
    return row.id != incident.decision_row


def all_members(needs: Guarded) -> tuple[ClusterNode, ...]:
    """All pages, or none: half a cluster is a wrong denominator."""
    try:
        return needs.cluster.nodes()
    except PipelineError as e:
        raise NeedsHumanError(f"the cluster's nodes cannot be read ({e}): nothing was replaced") from e


def is_checked(incident: Incident, members: tuple[ClusterNode, ...]) -> bool:
    """Approved while its check still runs, which later evidence had made needless: that ends by itself."""
    target = incident.targets[0]
    return any(n.instance_id == target.instance_id and n.status == IN_PROGRESS for n in members)


def require_same_world(needs: Guarded, incident: Incident, members: tuple[ClusterNode, ...]) -> None:
    """Same instance, same launch, Running, same group, still cordoned by us."""
    target = incident.targets[0]
    if incident.node != target.node or instance_id_of(target.node) != target.instance_id:
        raise NeedsHumanError("the incident's row names a node and another instance: nothing was replaced")
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


def limit_reached(needs: Guarded, incident: Incident, members: tuple[ClusterNode, ...]) -> str:
    s, group = needs.settings, incident.targets[0].group
    running = sum(1 for n in members if n.group == group and n.status == "Running")
    budget = Budget(s.replacements_per_day, s.replacement_budget_percent, s.replacements_per_hour)
    if running == 0:
        raise NeedsHumanError(f"no instance of {group} is Running: nothing was replaced")
    earlier = needs.controls.replacements(group).items()
    others = tuple(at for holder, at in earlier if holder != incident.id)
    return within_budget(budget, running, others, needs.clock.now())
