"""The review page behind the mailed link: GET shows, POST decides (API Gateway HTTP API, payload 2.0).

In: the link's secret in the path. Out: escaped HTML without script. GET and HEAD never change anything; POST
needs the typed value, a reason and the same origin, and counts once, by conditional write.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import deciding, wiring
from .deciding import Ended
from .domain import messages
from .domain.approval import Answer, Approval, ApprovalState, hash_of
from .domain.errors import PipelineError
from .observability import logger
from .page import Response, page
from .ports import Approvals, Callback, Clock
from .settings import ApprovalDecideSettings, ApprovalShowSettings

Event = dict[str, Any]
MAX_FORM_BYTES = 16 * 1024
MAX_REASON = 500


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
    approval, _ = _find(needs, event)
    if approval is None:
        return _unknown()
    if approval.state is not ApprovalState.PENDING or approval.expired(needs.clock.now()):
        return ENDED[Ended.USED if approval.decided else Ended.OVER]()
    return page("review.html", 200, approval=approval)


def _decide(needs: DecideNeeds, event: Event) -> Response:
    if not _same_origin(event):
        return page(
            "plain.html",
            403,
            title="Refused",
            text="The form was not sent from its own page. Open the mailed link again; nothing was changed.",
        )
    form = _form(event)
    approval, approver = _find(needs, event)
    if approval is None:
        return _unknown()
    ended = deciding.standing(approval, needs)
    if ended is None:
        mistake = _mistake(form, approval)
        if mistake:
            return page("review.html", 400, approval=approval, mistake=mistake, given=form)
        reason = messages.one_line(form["reason"], MAX_REASON)
        ended = deciding.decide(needs, approval, Answer(form["decision"]), reason, approver)
    if ended is Ended.DELIVERED:
        decided = needs.approvals.get(approval.approval_id)
        return page("decided.html", 200, approval=decided or approval)
    return ENDED[ended]()


def _find(needs: ShowNeeds | DecideNeeds, event: Event) -> tuple[Approval | None, str]:
    """Approval and approver of the link's secret, by its hash; nothing when links are switched off."""
    secret = str((event.get("pathParameters") or {}).get("secret") or "")
    if not needs.settings.approval_links or not 20 <= len(secret) <= 100:
        return None, ""
    link = needs.approvals.link(hash_of(secret))
    return (needs.approvals.get(link.approval_id), link.approver) if link is not None else (None, "")


def _mistake(form: dict[str, str], approval: Approval) -> str:
    """One sentence about what to correct, "" when the form is complete."""
    if form.get("decision") not in [a.value for a in approval.answers]:
        return "Choose one of the answers."
    typed, wanted = form.get("typed", "").strip().lower(), approval.typed_value.lower()
    if not hmac.compare_digest(typed.encode(), wanted.encode()):
        what = "instance id" if approval.instance_id else "job's uid"
        return f"What you typed is not the last {len(wanted)} characters of the {what}; nothing was recorded."
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


def _plain(status: int, title: str, text: str) -> Callable[[], Response]:
    return lambda: page("plain.html", status, title=title, text=text)


ENDED = {
    Ended.USED: _plain(410, "Already used", "This link was used. Nothing was changed now."),
    Ended.OVER: _plain(410, "Expired", "This link has expired. Nothing was changed."),
    Ended.NOBODY_WAITS: _plain(
        410,
        "Expired",
        "The incident no longer waits for it. Your answer was noted; nothing was changed by it.",
    ),
    Ended.NOT_DELIVERED: _plain(
        503,
        "Recorded, not delivered yet",
        "Your answer is recorded. Send the form again in a minute to have it delivered.",
    ),
}


def _trouble(error: PipelineError) -> Response:
    logger.error("page", extra={"reason": type(error).__name__})
    return page("plain.html", 503, title="Try again", text="The page could not be read. Nothing was changed.")
