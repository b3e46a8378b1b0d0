"""Questions that an execution waits with: delivered when answered, closed when their node is another one now.

Used by `reconcile`. In: an incident that awaits its approval. Out: the row in its new state, and the waiting
execution told; what comes of it is read from the row, by `notices`.
"""

from __future__ import annotations

from typing import Protocol

from .. import deciding
from ..domain.approval import Approval, ApprovalState
from ..domain.incident import Incident
from ..domain.times import moment
from ..ports import Approvals, Callback, Clock, Cluster, Incidents


class Looker(Protocol):
    @property
    def approvals(self) -> Approvals: ...
    @property
    def incidents(self) -> Incidents: ...
    @property
    def callback(self) -> Callback: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def clock(self) -> Clock: ...


def look_after(needs: Looker, incident: Incident) -> int:
    """Number of decisions that were recorded, and of which the waiting execution has learned just now."""
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    if approval is None:
        return 0
    if approval.state is ApprovalState.PENDING and _another_node(needs, incident, approval):
        if not needs.approvals.end(approval.approval_id, ApprovalState.CLOSED):
            return 0  # answered in this moment
        story = f"{approval.instance_id} has gone or was launched again"
        needs.incidents.audit(incident.id, "question closed", story, needs.clock.now())
        deciding.deliver(needs, approval)
    elif approval.state is ApprovalState.CLOSED:  # and could not be delivered before
        deciding.deliver(needs, approval)
    elif approval.state is ApprovalState.DECIDED:
        return int(deciding.deliver(needs, approval) is deciding.Ended.DELIVERED)
    return 0


def _another_node(needs: Looker, incident: Incident, approval: Approval) -> bool:
    """Is the node that is asked about gone, or launched again? A drill's is in no cluster."""
    if not approval.instance_id or incident.synthetic or not incident.targets:
        return False
    target = incident.targets[0]
    member = next((n for n in needs.cluster.nodes() if n.instance_id == target.instance_id), None)
    return member is None or moment(member.launch_time) != moment(target.launch_time)
