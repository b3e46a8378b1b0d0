"""Ask a human: one mail with one link, and the execution waits on a task token.

In: {"task_token"} to ask, {"notice": "human"} to tell, {"timed_out": true} to see what became of it.
Out: an approval row (hash of the link's secret, newest token), mails; the page decides, `replace` re-reads.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from training_agent.contract import Alarm

from ..domain import messages
from ..domain.approval import Action, Answer, Approval, ApprovalState, Fact, hash_of
from ..domain.decision_table import ROWS
from ..domain.errors import NeedsHumanError, NoApproverError, PipelineError
from ..domain.incident import Incident, State
from ..domain.times import stamp
from ..ports import Approvals, Bus, Clock, Incidents, Mail
from ..settings import RequestApprovalSettings
from .outcome import StepResult, alarm_of, findings_of, record
from .replace import REFUSED, effect_name

_TIMED_OUT = {
    Answer.APPROVE: "approved",
    Answer.KEEP: "rejected_keep",
    Answer.RELEASE: "rejected_release",
}


@dataclass(frozen=True, slots=True)
class Needs:
    settings: RequestApprovalSettings
    incidents: Incidents
    approvals: Approvals
    mail: Mail
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str, event: dict[str, Any]) -> StepResult:
    if event.get("timed_out"):
        return _timed_out(needs, incident_id)
    if "notice" in event:
        return _tell(needs, incident_id, event.get("seen"))
    return _ask(needs, incident_id, str(event["task_token"]))


def _ask(needs: Needs, incident_id: str, task_token: str) -> StepResult:
    """Create the approval and mail its link, or give the standing one the newest token.

    Raises:
        NoApproverError: nobody is confirmed on the topic, found out before waiting on it.
    """
    before = needs.incidents.get(incident_id)
    alarm = alarm_of(needs.incidents, before)
    standing = needs.approvals.get(before.approval_id) if before.approval_id else None
    if standing is not None and standing.mailed:
        needs.approvals.renew_token(standing.approval_id, task_token)
        return StepResult("asked", "asked before; the standing link now answers this wait")
    approvers = needs.mail.approvers()
    if not approvers:
        raise NoApproverError("NO_APPROVER: no e-mail subscription of the approval topic is confirmed")
    if before.instance_id is None or before.decision_row is None:
        raise NeedsHumanError("no proven node or no decision: nothing can be approved")
    if standing is not None:  # a crash before its mail was known to be sent: its secret is lost
        needs.approvals.end(standing.approval_id, ApprovalState.SUPERSEDED)
    secret = secrets.token_urlsafe(32)  # 256 random bits; only their hash is kept
    approval = _approval(needs, before, alarm, secret)
    incident = replace(before, approval_id=approval.approval_id).to(State.AWAITING_APPROVAL)
    needs.approvals.create(approval, task_token)
    record(needs, before, incident, f"approval to {approval.action.value} {before.instance_id} requested")
    link = f"{needs.settings.review_url.rstrip('/')}/review/{secret}"
    subject, body = messages.approval_mail(incident, approval.facts, link, approval.expires_at)
    for approver in approvers:
        needs.mail.send(approver, subject, body)
    needs.approvals.mark_mailed(approval.approval_id)
    needs.incidents.audit(incident.id, "mail", f"review requested from {len(approvers)}", needs.clock.now())
    return StepResult("asked", f"{len(approvers)} approver(s) were asked")


def _approval(needs: Needs, incident: Incident, alarm: Alarm, secret: str) -> Approval:
    assert incident.instance_id is not None and incident.node is not None
    now = needs.clock.now()
    return Approval(
        approval_id=hash_of(secret),
        incident_id=incident.id,
        action=Action.REPLACE,
        node=incident.node,
        instance_id=incident.instance_id,
        evidence_hash=incident.evidence_hash,
        created_at=stamp(now),
        expires_at=stamp(now + needs.settings.approval_timeout),
        facts=_lines(needs, incident, alarm),
        warnings=messages.warnings(incident),
    )


def _lines(needs: Needs, incident: Incident, alarm: Alarm) -> tuple[Fact, ...]:
    row = ROWS[incident.decision_row or "X0"]
    reason = incident.human_reason or incident.decision_reason
    return messages.facts(incident, alarm, findings_of(alarm, incident), row, reason)


def _tell(needs: Needs, incident_id: str, seen: Any) -> StepResult:
    """Send the notice once. Never raises: this is where every other step's failure leads."""
    before = needs.incidents.get(incident_id)
    if before.state.terminal:
        return StepResult("told", f"the incident has ended as {before.state.value}")
    reason = before.human_reason or _reason(seen)
    closing = before.closing if before.closing in _TOLD else State.HANDED_TO_HUMAN
    incident = record(needs, before, replace(before, closing=closing, human_reason=reason), reason)
    try:
        if not needs.incidents.intend(incident.id, "notice", needs.clock.now()):
            return StepResult("told", "a human was told before")
        lines = _lines(needs, incident, alarm_of(needs.incidents, incident))
        effect = needs.incidents.effect(incident.id, effect_name(incident.tries.get("refused", 0)))
        issued = effect is not None and not effect.result.startswith(REFUSED)
        subject, body = messages.notice_mail(
            incident, lines, reason, observed=closing is State.OBSERVED, issued=issued
        )
        story = _send_to_all(needs, subject, body)
        needs.incidents.conclude(incident.id, "notice", story, needs.clock.now())
    except PipelineError as e:
        story = f"the notice could not be sent: {e}"
        needs.incidents.audit(incident.id, "notice", story, needs.clock.now())
    return StepResult("told", f"{reason}; {story}")


_TOLD = frozenset({State.OBSERVED, State.REPLACED_BY_HYPERPOD, State.HANDED_TO_HUMAN})


def _reason(seen: Any) -> str:
    """One sentence from what the state machine saw last: a story, or a failed task's error and cause."""
    if isinstance(seen, dict):
        if isinstance(seen.get("Error"), str):
            return messages.one_line(f"a step failed: {seen['Error']}: {seen.get('Cause', '')}")
        if isinstance(seen.get("story"), str):
            return messages.one_line(seen["story"])
    return "a step could not go on"


def _send_to_all(needs: Needs, subject: str, body: str) -> str:
    approvers = needs.mail.approvers()
    for approver in approvers:
        needs.mail.send(approver, subject, body)
    return f"{len(approvers)} approver(s) were told" if approvers else "NO_APPROVER: nobody could be told"


def _timed_out(needs: Needs, incident_id: str) -> StepResult:
    """The wait ended. The row decides: an answer that was recorded and not delivered still counts."""
    incident = needs.incidents.get(incident_id)
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    if approval is not None and needs.approvals.end(approval.approval_id, ApprovalState.EXPIRED):
        return _escalate(needs, incident)
    approval = needs.approvals.get(incident.approval_id) if incident.approval_id else None
    if approval is not None and approval.decided and approval.answer is not None:
        needs.approvals.mark_delivered(approval.approval_id)
        return StepResult(_TIMED_OUT[approval.answer], f"answered just in time: {approval.answer.value}")
    return StepResult("expired", "nobody answered; the node stays cordoned and is not replaced")


def _escalate(needs: Needs, incident: Incident) -> StepResult:
    story = "nobody answered; the node stays cordoned and is not replaced"
    try:
        lines = _lines(needs, incident, alarm_of(needs.incidents, incident))
        told = _send_to_all(needs, *messages.expired_mail(incident, lines))
    except PipelineError as e:
        told = f"the escalation could not be sent: {e}"
    needs.incidents.audit(incident.id, "approval expired", told, needs.clock.now())
    return StepResult("expired", f"{story}; {told}")
