"""The review page behind the mailed link: GET shows, POST decides (API Gateway HTTP API, payload 2.0).

In: the link's secret in the path. Out: escaped HTML without script. GET and HEAD never change anything; POST
needs the typed value, a reason and the same origin, and counts once, by conditional write.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import wiring
from .domain import messages
from .domain.approval import Answer, Approval, ApprovalState, hash_of
from .domain.errors import CallbackGoneError, PipelineError
from .observability import logger
from .page import Response, page
from .ports import Approvals, Callback, Clock
from .settings import ApprovalDecideSettings, ApprovalShowSettings

Event = dict[str, Any]
MAX_FORM_BYTES = 16 * 1024
MAX_REASON = 500
CALLBACK = {Answer.APPROVE: "approved", Answer.KEEP: "rejected_keep", Answer.RELEASE: "rejected_release"}


@dataclass(frozen=True, slots=True)
class ShowNeeds:
    settings: ApprovalShowSettings
    approvals: Approvals
    clock: Clock


@dataclass(frozen=True, slots=True)
class DecideNeeds:
    settings: ApprovalDecideSettings
    approvals: Approvals
    callback: Callback
    clock: Clock


@logger.inject_lambda_context
def show(event: Event, context: Any) -> Event:
    """GET and HEAD: the evidence and the form; never changes anything."""
    needs = wiring.needs("approval_show", ShowNeeds)
    method = _method(event)
    if method not in ("GET", "HEAD"):
        return page("plain.html", 405, title="Not allowed", text="This address answers GET only.").plain()
    try:
        answer = _show(needs, event)
    except PipelineError as e:
        answer = _trouble(e)
    return answer.plain(head=method == "HEAD")


@logger.inject_lambda_context
def decide(event: Event, context: Any) -> Event:
    """POST: typed value and reason, single use by conditional write, then the callback."""
    needs = wiring.needs("approval_decide", DecideNeeds)
    if _method(event) != "POST":
        return page("plain.html", 405, title="Not allowed", text="This address answers POST only.").plain()
    try:
        return _decide(needs, event).plain()
    except PipelineError as e:
        return _trouble(e).plain()


def _show(needs: ShowNeeds, event: Event) -> Response:
    approval = _find(needs.approvals, event)
    if approval is None:
        return _unknown()
    if approval.state is not ApprovalState.PENDING or approval.expired(needs.clock.now()):
        return _over(approval)
    return page("review.html", 200, approval=approval, answers=list(Answer))


def _decide(needs: DecideNeeds, event: Event) -> Response:
    if not _same_origin(event):
        return page("plain.html", 403, title="Refused", text="The form was not sent from its own page.")
    form = _form(event)
    approval = _find(needs.approvals, event)
    if approval is None:
        return _unknown()
    if approval.state is ApprovalState.DECIDED:  # a crash between the row and the callback: heal it
        return _deliver(needs, approval)
    if approval.state is not ApprovalState.PENDING or approval.expired(needs.clock.now()):
        return _over(approval)
    mistake = _mistake(form, approval)
    if mistake:
        return page("review.html", 400, approval=approval, answers=list(Answer), mistake=mistake)
    reason = messages.one_line(form["reason"], MAX_REASON)
    answer = Answer(form["decision"])
    if not needs.approvals.decide(
        approval.approval_id, answer, reason, "holder of the link", needs.clock.now()
    ):
        again = needs.approvals.get(approval.approval_id)
        return _over(again) if again is not None else _unknown()
    logger.info("decided", extra={"incident_id": approval.incident_id, "answer": answer.value})
    decided = needs.approvals.get(approval.approval_id)
    assert decided is not None
    return _deliver(needs, decided)


def _deliver(needs: DecideNeeds, approval: Approval) -> Response:
    """Tell the waiting execution what the row says (never what a form says)."""
    token = needs.approvals.task_token(approval.approval_id)
    assert approval.answer is not None
    output = {
        "incident_id": approval.incident_id,
        "outcome": CALLBACK[approval.answer],
        "story": f"a human answered: {approval.answer.value}",
        "wait_seconds": 0,
        "approval_timeout_seconds": 3600,
    }
    try:
        needs.callback.succeed(token or "", output)
    except CallbackGoneError:
        return page(
            "plain.html",
            410,
            title="Expired",
            text="The incident no longer waits for it. Your answer was noted; nothing was changed by it.",
        )
    except PipelineError as e:
        logger.error("not delivered", extra={"incident_id": approval.incident_id, "reason": type(e).__name__})
        return page(
            "plain.html",
            503,
            title="Recorded, not delivered yet",
            text="Your answer is recorded. Send the form again in a minute to have it delivered.",
        )
    needs.approvals.mark_delivered(approval.approval_id)
    return page("decided.html", 200, approval=approval)


def _find(approvals: Approvals, event: Event) -> Approval | None:
    """The approval of the link's secret, by its hash, compared in constant time."""
    secret = str((event.get("pathParameters") or {}).get("secret") or "")
    if not 20 <= len(secret) <= 100:
        return None
    wanted = hash_of(secret)
    approval = approvals.get(wanted)
    if approval is None or not hmac.compare_digest(approval.approval_id, wanted):
        return None
    return approval


def _mistake(form: dict[str, str], approval: Approval) -> str:
    """One sentence about what to correct, "" when the form is complete."""
    if form.get("decision") not in [a.value for a in Answer]:
        return "Choose one of the answers."
    if not hmac.compare_digest(form.get("typed", "").strip().encode(), approval.typed_value.encode()):
        return f"Type the last {len(approval.typed_value)} characters of the instance id."
    if not form.get("reason", "").strip():
        return "Give a reason; it is kept with the incident."
    return ""


def _same_origin(event: Event) -> bool:
    """Browsers say where a form comes from: Sec-Fetch-Site, or an Origin that is this page's own host.

    Under `Referrer-Policy: no-referrer` a form's Origin is "null" (Fetch standard), so it cannot be the only
    witness. Neither header present: refused.
    """
    headers = {k.lower(): v for k, v in (event.get("headers") or {}).items()}
    site = headers.get("sec-fetch-site")
    if site is not None:
        return bool(site == "same-origin")
    origin = urlsplit(headers.get("origin", ""))
    host = headers.get("host") or (event.get("requestContext") or {}).get("domainName", "")
    return bool(origin.netloc) and origin.netloc == host


def _form(event: Event) -> dict[str, str]:
    """Fields of a form body (base64 as HTTP APIs send it); unreadable ones read as empty."""
    body = str(event.get("body") or "")
    if len(body) > MAX_FORM_BYTES:
        return {}
    try:
        raw = base64.b64decode(body, validate=True) if event.get("isBase64Encoded") else body.encode()
        fields = parse_qs(raw.decode(), keep_blank_values=True, max_num_fields=10)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return {}
    return {k: v[0] for k, v in fields.items() if len(v) == 1}


def _method(event: Event) -> str:
    return str(((event.get("requestContext") or {}).get("http") or {}).get("method", "")).upper()


def _unknown() -> Response:
    return page("plain.html", 404, title="Unknown link", text="This link leads nowhere.")


def _over(approval: Approval) -> Response:
    if approval.decided:
        return page(
            "plain.html", 410, title="Already used", text="This link was used. Nothing was changed now."
        )
    return page("plain.html", 410, title="Expired", text="This link has expired. Nothing was changed.")


def _trouble(error: PipelineError) -> Response:
    logger.error("page", extra={"reason": type(error).__name__})
    return page("plain.html", 503, title="Try again", text="The page could not be read. Nothing was changed.")
