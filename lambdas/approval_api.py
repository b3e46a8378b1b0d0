"""The signed route: the same decisions as the page, by a caller whom IAM knows and whose ARN is recorded.

In: an HTTP API event behind the AWS_IAM authorizer, JSON bodies. Out: JSON. GET lists and shows, POST decides
an approval, closes the breaker, or has an ended incident's node and job released, each with a reason.
Without a caller in the event nothing is answered. A decision names its question and what it asks for: an
incident asks again, and a yes is to one question only.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from . import deciding, wiring
from .deciding import Ended
from .domain import commands, messages
from .domain.approval import Answer, Approval, Fact
from .domain.errors import PermanentError, PipelineError
from .domain.incident import Incident
from .observability import logger
from .ports import Approvals, Callback, Clock, Controls, Incidents, Releaser
from .settings import ApprovalApiSettings

Event = dict[str, Any]
MAX_BODY_BYTES = 16 * 1024
MAX_REASON = 500
STATUS = {
    Ended.DELIVERED: 200,
    Ended.NOT_DELIVERED: 503,
    Ended.NOBODY_WAITS: 410,
    Ended.USED: 409,
    Ended.OVER: 410,
}


@dataclass(frozen=True, slots=True)
class Needs:
    settings: ApprovalApiSettings
    incidents: Incidents
    approvals: Approvals
    controls: Controls
    callback: Callback
    releaser: Releaser
    clock: Clock


@logger.inject_lambda_context
def handle(event: Event, context: Any) -> Event:
    """One signed request."""
    needs = wiring.needs("approval_api", Needs)
    caller = _caller(event)
    if not caller:
        return _answer(403, error="the request is not signed")
    try:
        return _route(needs, event, caller)
    except PermanentError as e:
        return _answer(404, error=messages.one_line(str(e)))
    except PipelineError as e:
        logger.error("signed route", extra={"reason": type(e).__name__})
        return _answer(503, error="try again; nothing was changed")


def _route(needs: Needs, event: Event, caller: str) -> Event:
    route = str(event.get("routeKey", ""))
    incident_id = str((event.get("pathParameters") or {}).get("incident_id", ""))
    if route == "GET /incidents":
        found = [needs.incidents.get(i) for i in needs.incidents.open_incidents()]
        return _answer(200, incidents=[_summary(i) for i in found if not i.state.terminal])
    if route == "GET /incidents/{incident_id}":
        incident = needs.incidents.get(incident_id)
        return _answer(200, incident=_summary(incident), approval=_shown(_approval(needs, incident)))
    if route == "POST /incidents/{incident_id}/decision":
        return _decide(needs, needs.incidents.get(incident_id), _body(event), caller)
    if route == "POST /incidents/{incident_id}/release":
        return _release(needs, needs.incidents.get(incident_id), _body(event), caller)
    if route == "POST /breaker":
        return _close_breaker(needs, _body(event), caller)
    return _answer(404, error="there is no such route")


def _decide(needs: Needs, incident: Incident, body: dict[str, Any], caller: str) -> Event:
    approval = _approval(needs, incident)
    if approval is None:
        return _answer(404, error="nothing is asked for this incident")
    mistake = _unnamed(body)
    if mistake:
        return _answer(400, error=mistake)
    if (body["question"], body["action"]) != (approval.approval_id, approval.action.value):
        return _answer(409, error=_other_question(approval), approval=_shown(approval))
    ended = deciding.standing(approval, needs)
    if ended is None:
        mistake = _mistake(body, approval)
        if mistake:
            return _answer(400, error=mistake)
        reason = messages.one_line(body["reason"], MAX_REASON)
        ended = deciding.decide(needs, approval, Answer(body["decision"]), reason, caller)
    return _answer(STATUS[ended], result=ended.value, approval=_shown(_approval(needs, incident)))


def _release(needs: Needs, incident: Incident, body: dict[str, Any], caller: str) -> Event:
    """By the function that may uncordon; whether it may now is judged there, and the caller recorded."""
    reason = _reason(body)
    if not reason:
        return _answer(400, error="give a reason; it is kept with the incident")
    released, story = needs.releaser.release(incident.id, caller, reason)
    if not released:
        return _answer(409, error=story)
    logger.info("released", extra={"incident_id": incident.id, "by": caller})
    return _answer(200, result="released", story=story)


def _reason(body: dict[str, Any]) -> str:
    given = body.get("reason")
    return messages.one_line(given, MAX_REASON) if isinstance(given, str) else ""


def _close_breaker(needs: Needs, body: dict[str, Any], caller: str) -> Event:
    reason = messages.one_line(str(body.get("reason", "")), MAX_REASON)
    if not reason:
        return _answer(400, error="give a reason; it is kept")
    if not needs.controls.close_breaker(reason, caller, needs.clock.now()):
        return _answer(409, error="the breaker is not open")
    logger.info("breaker closed", extra={"by": caller})
    return _answer(200, result="closed")


def _unnamed(body: dict[str, Any]) -> str:
    """What a body lacks to be an answer to one question; "" when it names it."""
    named = all(isinstance(body.get(name), str) and body[name] for name in ("question", "action"))
    return "" if named else "name the question and the action that you answer, as GET and mails show them"


def _other_question(approval: Approval) -> str:
    return f"the question now is {approval.approval_id}: {approval.action.value}; read it before you answer"


def _mistake(body: dict[str, Any], approval: Approval) -> str:
    if body.get("decision") not in [a.value for a in approval.answers]:
        return f"decision must be one of {', '.join(a.value for a in approval.answers)}"
    if not isinstance(body.get("reason"), str) or not body["reason"].strip():
        return "give a reason; it is kept with the incident"
    if approval.instance_id and body.get("instance_id", approval.instance_id) != approval.instance_id:
        return "the approval is for another instance"
    return ""


def _approval(needs: Needs, incident: Incident) -> Approval | None:
    return needs.approvals.get(incident.approval_id) if incident.approval_id else None


def _summary(incident: Incident) -> dict[str, Any]:
    return {
        "incident_id": incident.id,
        "state": incident.state.value,
        "job": incident.job.name,
        "node": incident.node,
        "instance_id": incident.instance_id,
        "decision_row": incident.decision_row,
        "reason": incident.human_reason or incident.decision_reason,
        "opened_at": incident.opened_at,
        "synthetic": incident.synthetic,
    }


def _shown(approval: Approval | None) -> dict[str, Any] | None:
    if approval is None:
        return None
    return {
        "question": approval.approval_id,
        "action": approval.action.value,
        "state": approval.state.value,
        "instance_id": approval.instance_id,
        "answers": [a.value for a in approval.answers],
        "answer": approval.answer.value if approval.answer else None,
        "decided_by": approval.decided_by,
        "decided_at": approval.decided_at,
        "reason": approval.reason,
        "expires_at": approval.expires_at,
        "facts": _by_label(approval.facts),
        "warnings": list(approval.warnings),
        "replay_job": "\n".join(commands.job_of(approval)),
    }


def _by_label(facts: tuple[Fact, ...]) -> dict[str, str]:
    """All of them: findings, readings and audits share a label each."""
    found: dict[str, str] = {}
    for fact in facts:
        found[fact.label] = f"{found[fact.label]}; {fact.text}" if fact.label in found else fact.text
    return found


def _caller(event: Event) -> str:
    """The caller's ARN as the authorizer says; a header or body claims nothing."""
    iam = ((event.get("requestContext") or {}).get("authorizer") or {}).get("iam") or {}
    return str(iam.get("userArn") or "")


def _body(event: Event) -> dict[str, Any]:
    """The JSON object of a body; what cannot be read is empty."""
    text = str(event.get("body") or "")
    if len(text) > MAX_BODY_BYTES:
        return {}
    try:
        raw = base64.b64decode(text, validate=True) if event.get("isBase64Encoded") else text.encode()
        body = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _answer(status: int, **content: Any) -> Event:
    return {
        "statusCode": status,
        "headers": {"content-type": "application/json", "cache-control": "no-store"},
        "body": json.dumps(content),
        "isBase64Encoded": False,
    }
