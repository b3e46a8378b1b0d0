"""Did the replacement happen? Old id gone, and a NEW id Running in the same group.

In: a REPLACING incident, also one whose `replace` died. Out: "waiting", "verified" with the newcomer's id, or
"degraded": a human, and the breaker opens. Where Karpenter manages the nodes, "the old id is gone and no pod
waits for a node" is its own good end. Only reads the cluster; frees the replacement lock when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..domain.errors import NeedsHumanError
from ..domain.incident import Incident, State
from ..domain.times import moment
from ..domain.world import ClusterFacts, ClusterNode
from ..ports import Bus, Clock, Cluster, Controls, Incidents, Kubernetes
from ..settings import VerifySettings
from .outcome import StepResult, Took, record
from .replace import REPLACE_LOCK, requested

WAIT_SECONDS = 60
NO_DEMAND_POLLS = 10  # looks without a pod that waits, after the old id is gone
MAX_POLLS = 120  # two hours: 20 to 30 minutes are typical, a failed start is tried again by HyperPod


@dataclass(frozen=True, slots=True)
class Needs:
    settings: VerifySettings
    incidents: Incidents
    controls: Controls
    cluster: Cluster
    kubernetes: Kubernetes
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    before = needs.incidents.get(incident_id)
    if not requested(needs.incidents, before):
        raise NeedsHumanError("the replacement broke off before anything was requested: nothing was replaced")
    incident = before.to(State.VERIFYING)
    target = incident.targets[0]
    members = needs.cluster.nodes()
    gone = all(n.instance_id != target.instance_id for n in members)
    newcomer = _newcomer(incident, members) if gone else None
    facts = needs.cluster.describe() if newcomer is not None else None
    if newcomer is not None and facts is not None and _is_ours(incident, members, facts):
        checks = facts.on_start_checks.get(target.group, ())
        screened = f"screened by {', '.join(checks)}" if checks else "not screened at start"
        story = f"{target.instance_id} is gone, {newcomer.instance_id} is Running ({screened})"
        done = replace(incident, new_instance_id=newcomer.instance_id, closing=State.REPLACED)
        record(needs, before, done, story)
        needs.controls.unlock(REPLACE_LOCK, incident.id)
        took = Took.between("seconds_to_replace", incident.issued_at, needs.clock.now(), incident)
        return StepResult("verified", story, took=took)
    waited = incident.tried("verify")
    if gone and _no_demand(needs):
        waited = waited.tried("no_demand")
        if waited.tries["no_demand"] >= NO_DEMAND_POLLS:
            story = f"{target.instance_id} is gone and no pod waits for a node: Karpenter starts none"
            record(needs, before, replace(waited, closing=State.TERMINATED_NO_DEMAND), story)
            needs.controls.unlock(REPLACE_LOCK, incident.id)
            return StepResult("verified", story)
    story = f"{target.instance_id} is {'gone' if gone else 'still there'}, no newcomer is Running yet"
    if waited.tries["verify"] >= MAX_POLLS:
        story = f"{story} after {MAX_POLLS} looks: look at the group {target.group}"
        needs.controls.open_breaker(story, incident.id, needs.clock.now())
        degraded = replace(waited, closing=State.REPLACEMENT_DEGRADED, human_reason=story)
        record(needs, before, degraded, story)
        return StepResult("degraded", story)
    record(needs, before, waited, story)
    return StepResult("waiting", story, wait_seconds=WAIT_SECONDS)


def _no_demand(needs: Needs) -> bool:
    return needs.cluster.describe().karpenter and not needs.kubernetes.pending_pods()


def _is_ours(incident: Incident, members: tuple[ClusterNode, ...], facts: ClusterFacts) -> bool:
    """May the newcomer be another node's? HyperPod replaces by itself as well, and tells not whom for whom.

    It is not where each that went has one that came, or the group is complete.
    """
    group = incident.targets[0].group
    went = set(incident.known_instances) - {n.instance_id for n in members}
    return facts.karpenter or group in facts.complete or len(_fresh(incident, members)) >= len(went)


def _newcomer(incident: Incident, members: tuple[ClusterNode, ...]) -> ClusterNode | None:
    return min(_fresh(incident, members), key=lambda n: moment(n.launch_time), default=None)


def _fresh(incident: Incident, members: tuple[ClusterNode, ...]) -> list[ClusterNode]:
    """Running instances of the group that were not there when it was requested, younger than the suspect."""
    group = incident.targets[0].group
    return [
        n
        for n in members
        if n.group == group
        and n.status == "Running"
        and n.instance_id not in incident.known_instances
        and moment(n.launch_time) > moment(incident.targets[0].launch_time)
    ]
