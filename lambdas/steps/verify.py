"""Did the replacement happen? Old id gone, and a NEW id Running in the same group.

In: a REPLACING incident. Out: "waiting", "verified" with the newcomer's id, or "degraded" for a human.
Only reads the cluster; frees the replacement lock when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..domain.incident import Incident, State
from ..domain.times import moment
from ..ports import Bus, Clock, Cluster, ClusterNode, Controls, Incidents
from ..settings import VerifySettings
from .outcome import StepResult, record
from .replace import REPLACE_LOCK

WAIT_SECONDS = 60
MAX_POLLS = 120  # two hours: 20 to 30 minutes are typical, a failed start is tried again by HyperPod


@dataclass(frozen=True, slots=True)
class Needs:
    settings: VerifySettings
    incidents: Incidents
    controls: Controls
    cluster: Cluster
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str) -> StepResult:
    before = needs.incidents.get(incident_id)
    incident = before.to(State.VERIFYING)
    target = incident.targets[0]
    members = needs.cluster.nodes()
    gone = all(n.instance_id != target.instance_id for n in members)
    newcomer = _newcomer(incident, members)
    if gone and newcomer is not None:
        checks = needs.cluster.describe().on_start_checks.get(target.group, ())
        screened = f"screened by {', '.join(checks)}" if checks else "not screened at start"
        story = f"{target.instance_id} is gone, {newcomer.instance_id} is Running ({screened})"
        done = replace(incident, new_instance_id=newcomer.instance_id, closing=State.REPLACED)
        record(needs, before, done, story)
        needs.controls.unlock(REPLACE_LOCK, incident.id)
        return StepResult("verified", story)
    waited = incident.tried("verify")
    story = f"{target.instance_id} is {'gone' if gone else 'still there'}, no newcomer is Running yet"
    record(needs, before, waited, story)
    if waited.tries["verify"] >= MAX_POLLS:
        return StepResult("degraded", f"{story} after {MAX_POLLS} looks: look at the group {target.group}")
    return StepResult("waiting", story, wait_seconds=WAIT_SECONDS)


def _newcomer(incident: Incident, members: tuple[ClusterNode, ...]) -> ClusterNode | None:
    """A Running instance of the group that was not there, launched after the request."""
    group = incident.targets[0].group
    fresh = [
        n
        for n in members
        if n.group == group
        and n.status == "Running"
        and n.instance_id not in incident.known_instances
        and moment(n.launch_time) > moment(incident.targets[0].launch_time)
    ]
    return min(fresh, key=lambda n: moment(n.launch_time), default=None)
