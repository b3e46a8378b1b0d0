"""Ask a human: one mail with one link for each approver, and the execution waits on a task token.

In: {"task_token"} to ask, {"answered": true} and {"timed_out": true} to read what became of it, {"notice":
"human"} to tell; {"execution"}, its ARN, for a link to the console. Out: an approval row with the newest
token, a row for each link (hash of its secret), mails.
The page or the signed route decides; `replace` and `resume` re-read the row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from training_agent.contract import Alarm, gpu_subject, instance_subject

from ..domain import commands, mails, messages
from ..domain.approval import Action, Approval, ApprovalState, Past
from ..domain.errors import NeedsHumanError, NoApproverError
from ..domain.incident import Incident, State
from ..domain.times import stamp
from ..ports import Approvals, Bus, Clock, Controls, Incidents, Mail
from ..settings import RequestApprovalSettings
from . import notices
from .outcome import StepResult, alarm_of, record
from .way import way_to

MAX_HISTORY = 20  # lines of the page


@dataclass(frozen=True, slots=True)
class Needs:
    settings: RequestApprovalSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    mail: Mail
    bus: Bus
    clock: Clock


def run(needs: Needs, incident_id: str, event: dict[str, Any]) -> StepResult:
    execution = str(event.get("execution", ""))  # the definition before named none
    if event.get("timed_out"):
        return notices.timed_out(needs, incident_id)
    if event.get("answered"):
        return notices.answered(needs, incident_id)
    if "notice" in event:
        return notices.tell(needs, incident_id, event.get("seen"), execution)
    return _ask(needs, incident_id, str(event["task_token"]), execution)


def _ask(needs: Needs, incident_id: str, task_token: str, execution: str) -> StepResult:
    """Create the approval, or give the standing one the newest token; mail whoever has no link yet.

    Raises:
        NoApproverError: nobody is confirmed on the topic, found out before waiting on it.
    """
    before = needs.incidents.get(incident_id)
    alarm = alarm_of(needs.incidents, before)
    standing = needs.approvals.get(before.approval_id) if before.approval_id else None
    approvers = needs.mail.approvers()
    if not approvers and (standing is None or not standing.mailed):
        raise NoApproverError("NO_APPROVER: no e-mail subscription of the approval topic is confirmed")
    if before.decision_row is None or not _has_subject(before):
        raise NeedsHumanError("no proven node or no decision: nothing can be approved")
    asked = before.to(State.AWAITING_APPROVAL)
    if asked.approval_id is None:  # decided by the version before, which numbered no questions
        asked = replace(asked, asks=asked.asks + 1, approval_id=f"{asked.id}-{asked.asks + 1}")
    if standing is None:
        for number in range(1, asked.asks):  # their links say from now on that a newer question stands
            needs.approvals.end(f"{asked.id}-{number}", ApprovalState.SUPERSEDED)
    approval = standing or replace(_approval(needs, asked, alarm), execution=execution)
    needs.approvals.create(approval, task_token)
    incident = record(needs, before, asked, f"asked for {approval.action.value}")
    if standing is not None and standing.state is not ApprovalState.PENDING:
        return StepResult("asked", f"the standing question is {standing.state.value}")
    missing = [a for a in approvers if not approval.mailed_to(a)]
    for approver in missing:
        way, url = way_to(needs, approval, approver), needs.settings.review_url.rstrip("/")
        subject, body = mails.approval_mail(incident, approval, way, url)
        needs.mail.send(approver, subject, body)
        needs.approvals.mark_mailed(approval.approval_id, approver)
    needs.incidents.audit(incident.id, "mail", f"review requested from {len(missing)}", needs.clock.now())
    return StepResult("asked", f"{len(missing)} approver(s) were asked for {approval.action.value}")


def _has_subject(incident: Incident) -> bool:
    return incident.instance_id is not None or incident.asking is Action.RELEASE


def _approval(needs: Needs, incident: Incident, alarm: Alarm) -> Approval:
    assert incident.approval_id is not None
    now = needs.clock.now()
    return Approval(
        approval_id=incident.approval_id,
        incident_id=incident.id,
        action=incident.asking,
        node=incident.node or "",
        instance_id=incident.instance_id or "",
        evidence_hash=incident.evidence_hash,
        created_at=stamp(now),
        expires_at=stamp(now + needs.settings.approval_timeout),
        facts=notices.lines(needs, incident, alarm),
        warnings=messages.warnings(incident, needs.settings.replacement_budget_percent),
        job_uid=incident.job.uid,
        row=incident.decision_row or "",
        alarm=alarm,
        ranks=incident.ranks,
        history=_history(needs.incidents, incident),
        telemetry=incident.readings,
        command=commands.check_of(incident),
        synthetic=incident.synthetic,
    )


def _history(incidents: Incidents, incident: Incident) -> tuple[Past, ...]:
    """Earlier incidents of the instance and of its accused GPUs, which outlive it; newest first."""
    subjects = [
        (kind, subject)
        for t in incident.targets
        for kind, subject in (
            ("instance", instance_subject(t.instance_id)),
            *(("GPU", gpu_subject(g)) for g in t.gpu_uuids),
        )
    ]
    found = {
        (e.at, kind, e.what, e.incident_id)
        for kind, subject in subjects
        for e in incidents.history(subject)
        if e.incident_id != incident.id
    }
    return tuple(Past(*entry) for entry in sorted(found, reverse=True)[:MAX_HISTORY])
