"""The review page behind the mailed link: GET shows, POST decides (API Gateway HTTP API, payload 2.0).

In: the link's secret in the path. Out: escaped HTML without script. GET and HEAD never change anything; POST
needs the typed value, a reason and the same origin, and counts once, by conditional write.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from . import deciding, ended, wiring
from .deciding import Ended
from .domain import messages
from .domain.approval import Answer, Approval, ApprovalState, hash_of
from .domain.errors import PipelineError
from .observability import logger
from .page import Response
from .ports import Approvals, Callback, Clock
from .review import mistake_in, review
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
        return ended.not_allowed("GET").plain()
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
        return ended.not_allowed("POST").plain()
    try:
        return _decide(needs, event).plain()
    except PipelineError as e:
        return _trouble(e).plain()


def _show(needs: ShowNeeds, event: Event) -> Response:
    approval, _ = _find(needs, event)
    if approval is None:
        return ended.unknown()
    if approval.state is not ApprovalState.PENDING or approval.expired(needs.clock.now()):
        return ended.over(approval, Ended.USED if approval.decided else Ended.OVER)
    return review(approval)


def _decide(needs: DecideNeeds, event: Event) -> Response:
    if not _same_origin(event):
        return ended.refused()
    form = _form(event)
    approval, approver = _find(needs, event)
    if approval is None:
        return ended.unknown()
    how = deciding.standing(approval, needs)
    if how is None:
        mistake = mistake_in(form, approval)
        if mistake is not None:
            return review(approval, mistake, form)
        reason = messages.one_line(form["reason"], MAX_REASON)
        how = deciding.decide(needs, approval, Answer(form["decision"]), reason, approver)
    now = needs.approvals.get(approval.approval_id) or approval
    return ended.recorded(now) if how is Ended.DELIVERED else ended.over(now, how)


def _find(needs: ShowNeeds | DecideNeeds, event: Event) -> tuple[Approval | None, str]:
    """Approval and approver of the link's secret, by its hash; nothing when links are switched off."""
    secret = str((event.get("pathParameters") or {}).get("secret") or "")
    if not needs.settings.approval_links or not 20 <= len(secret) <= 100:
        return None, ""
    link = needs.approvals.link(hash_of(secret))
    return (needs.approvals.get(link.approval_id), link.approver) if link is not None else (None, "")


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


def _trouble(error: PipelineError) -> Response:
    logger.error("page", extra={"reason": type(error).__name__})
    return ended.trouble()
