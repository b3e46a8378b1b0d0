"""HyperPod's deep health check of one node: started once, where it is safe, and looked at until it ends.

Used by `confirm`. A check is not harmless: under NodeRecovery Automatic it may reboot or replace the node
by itself, so a human approves it first, by name. No API tells a check's result: labels and status are polled,
and Running means passed only after the check was seen in progress. Labels outlive their check, so the one
that stood before the start is saved before the start: a check that never ran says nothing about its node.
Nor does one that somebody else's check has superseded, however that one ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from training_agent.contract import Mode

from ..domain.approval import Action, require_approved
from ..domain.decision_table import Row
from ..domain.errors import HaltedError, NeedsHumanError, RefusedError, WorldChangedError
from ..domain.incident import CheckResult, DeepCheck, Incident, Target
from ..domain.messages import check_command
from ..domain.times import moment
from ..domain.world import ClusterNode
from ..ports import Approvals, Cluster
from ..settings import ConfirmSettings
from .effects import Hands, job_pods, ours, permit

MAX_POLLS = 135  # four hours: DCGM level 4 takes up to two
MAX_UNSEEN_POLLS = 15  # accepted and never seen in progress
MAX_WAITS_FOR_START = 60  # for the job's pods to leave, or for another check in this cluster
CHECK_LOCK = "deep_check"  # one check per cluster at a time
IN_PROGRESS = "DeepHealthCheckInProgress"
LABEL_IN_PROGRESS = "InProgress"
CHECK_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"  # InProgress | Passed | Failed
EFFECT = "deep_check"
MULTI_NODE = "MultiNodeTrainingValidation"


class Checkers(Hands, Protocol):
    @property
    def settings(self) -> ConfirmSettings: ...
    @property
    def cluster(self) -> Cluster: ...
    @property
    def approvals(self) -> Approvals: ...


def go_on(needs: Checkers, incident: Incident, row: Row) -> Incident:
    """Start the check, or look at the running one."""
    if incident.deep_check.result is CheckResult.RUNNING:
        return _poll(needs, incident)
    if not needs.settings.deep_check_enabled:
        return _ended(incident, CheckResult.UNAVAILABLE, "switched off")
    if len(incident.targets) != 1 or MULTI_NODE in row.checks:
        command = check_command(incident, row.checks)
        return _ended(incident, CheckResult.UNAVAILABLE, f"one over several nodes is a human's: {command}")
    return _start(needs, incident, incident.targets[0], row.checks)


def _start(needs: Checkers, incident: Incident, target: Target, checks: tuple[str, ...]) -> Incident:
    automatic = needs.cluster.describe().node_recovery != "None"
    if automatic:
        unapproved = _unapproved(needs, incident)
        if unapproved is not None:
            return unapproved
    node = needs.kubernetes.node(target.node)
    if node is None:
        return _ended(incident, CheckResult.NODE_GONE, f"{target.node} is gone")
    if not ours(node, incident):
        return _ended(incident, CheckResult.UNAVAILABLE, "the node is not cordoned by us")
    if job_pods(needs, incident, target):
        return _wait(incident, "the job's pods have not left the node")
    if _another_runs(needs, incident, target):
        return _wait(incident, "another check runs in this cluster")
    member = _member(needs, target)
    if member is None:
        return _ended(incident, CheckResult.NODE_GONE, f"{target.instance_id} is gone")
    if needs.incidents.effect(incident.id, EFFECT) is not None:
        # A retry after a crash: the intent stands, so it may have been started. Look, never start again.
        return _poll(needs, _running(incident))
    label = node.labels.get(CHECK_LABEL)
    if label == LABEL_IN_PROGRESS or member.status == IN_PROGRESS:
        needs.controls.unlock(CHECK_LOCK, incident.id)
        return _wait(incident, "a check that is not ours runs on the node")
    return _begin(needs, _with_snapshot(needs, incident, label), target, checks)


def _begin(needs: Checkers, incident: Incident, target: Target, checks: tuple[str, ...]) -> Incident:
    """Permission, INTENT, the call, RESULT; in this order."""
    try:
        permit(needs, Mode.REPLACE, "deep health check")
        if not needs.incidents.intend(incident.id, EFFECT, needs.clock.now()):
            return _poll(needs, _running(incident))
        needs.cluster.start_health_check(target.group, target.instance_id, checks)
    except RefusedError as e:
        needs.incidents.conclude(incident.id, EFFECT, f"refused: {e.code}", needs.clock.now())
        return _ended(incident, CheckResult.UNAVAILABLE, str(e))
    except HaltedError as e:
        return _ended(incident, CheckResult.UNAVAILABLE, str(e))
    needs.incidents.conclude(incident.id, EFFECT, "started", needs.clock.now())
    return _poll(needs, _running(incident))


def _with_snapshot(needs: Checkers, incident: Incident, label: str | None) -> Incident:
    """Save what the label says before the start, so that whoever comes after a crash can compare."""
    before = DeepCheck(before_label=label, snapshot=True)
    if incident.deep_check == before:
        return incident
    return needs.incidents.save(replace(incident, deep_check=before))


def _running(incident: Incident) -> Incident:
    """The check may be under way; what was saved before the start is kept."""
    return replace(incident, deep_check=replace(incident.deep_check, result=CheckResult.RUNNING, note=""))


def _another_runs(needs: Checkers, incident: Incident, target: Target) -> bool:
    """One per cluster: by the lock, and by the cluster itself, whose check may outlive its incident."""
    others = (n.status for n in needs.cluster.nodes() if n.instance_id != target.instance_id)
    return IN_PROGRESS in others or not needs.controls.lock(CHECK_LOCK, incident.id)


def _unapproved(needs: Checkers, incident: Incident) -> Incident | None:
    """Under Automatic: None when a human approved this check of this node, in time; otherwise what to do."""
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    expired = approval is not None and approval.expired(needs.clock.now())  # while it waited for its turn
    if approval is None or approval.action is not Action.DEEP_CHECK or not approval.decided or expired:
        note = "NodeRecovery is Automatic: the check itself may replace the node, so a human approves it"
        return _ended(incident, CheckResult.NEEDS_APPROVAL, note)
    try:
        require_approved(approval, incident, incident.evidence_hash, needs.clock.now(), Action.DEEP_CHECK)
    except NeedsHumanError as e:
        return _ended(incident, CheckResult.UNAVAILABLE, str(e))
    return None


def _poll(needs: Checkers, incident: Incident) -> Incident:
    target, check = incident.targets[0], incident.deep_check
    member = _member(needs, target)
    node = needs.kubernetes.node(target.node)
    if member is None or node is None:
        return _ended(incident, CheckResult.NODE_GONE, f"{target.instance_id} vanished during the check")
    label = node.labels.get(CHECK_LABEL)
    in_progress = label == LABEL_IN_PROGRESS or member.status == IN_PROGRESS
    changed = check.snapshot and label is not None and label != check.before_label
    seen = check.seen_in_progress or in_progress or changed
    if not in_progress and _superseded(needs, incident, target):
        return _ended(incident, CheckResult.SUPERSEDED, "another check took its place: its label is not ours")
    if seen and not in_progress:
        if label == "Failed":
            return _ended(incident, CheckResult.FAILED, "label Failed")
        if member.status == "Running":
            return _ended(incident, CheckResult.PASSED, f"Running again, label {label}")
        return _ended(incident, CheckResult.FAILED, f"the instance is {member.status} after the check")
    polls = check.polls + 1
    if not seen and polls >= MAX_UNSEEN_POLLS:
        return _ended(incident, CheckResult.NEVER_STARTED, f"not seen in progress in {polls} looks")
    if polls >= MAX_POLLS:
        return _ended(incident, CheckResult.STUCK, f"still in progress after {polls} looks")
    return replace(incident, deep_check=replace(check, polls=polls, seen_in_progress=seen, note=""))


def _member(needs: Checkers, target: Target) -> ClusterNode | None:
    """The suspect instance, None when it is gone.

    Raises:
        WorldChangedError: it was launched again, by a person or by HyperPod: what is seen there is not of
            the node that was accused.
    """
    member = next((n for n in needs.cluster.nodes() if n.instance_id == target.instance_id), None)
    if member is not None and moment(member.launch_time) != moment(target.launch_time):
        raise WorldChangedError(f"{target.instance_id} was launched again since the alarm")
    return member


def _superseded(needs: Checkers, incident: Incident, target: Target) -> bool:
    """Ours, told from other people's by the moment in which it was asked for."""
    asked = needs.incidents.effect(incident.id, EFFECT)
    return asked is not None and needs.cluster.check_superseded(
        target.group, target.instance_id, moment(asked.at)
    )


def _wait(incident: Incident, note: str) -> Incident:
    if incident.tries.get("confirm", 0) >= MAX_WAITS_FOR_START:
        return _ended(incident, CheckResult.UNAVAILABLE, note)
    waiting = DeepCheck(CheckResult.NOT_RUN, note=note)
    return replace(incident.tried("confirm"), deep_check=waiting)


def _ended(incident: Incident, result: CheckResult, note: str) -> Incident:
    return replace(incident, deep_check=replace(incident.deep_check, result=result, note=note))
