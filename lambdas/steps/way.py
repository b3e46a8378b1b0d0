"""Where an approver answers: a link of his own, or the signed route when links are switched off.

Used by `request_approval` for the question and its reminder. In: the approval and the approver. Out: the
lines of the mail; a row for the link, which holds the hash of its secret and nothing more.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from ..domain import mails
from ..domain.approval import Approval, Link, hash_of
from ..ports import Approvals
from ..settings import RequestApprovalSettings


class Asks(Protocol):
    @property
    def settings(self) -> RequestApprovalSettings: ...
    @property
    def approvals(self) -> Approvals: ...


def way_to(needs: Asks, approval: Approval, approver: str) -> tuple[str, ...]:
    """A link of 256 random bits, of which only the hash is kept; or the route when links are off."""
    base = needs.settings.review_url.rstrip("/")
    if not needs.settings.approval_links:
        return mails.signed_way(f"{base}/incidents/{approval.incident_id}/decision")
    secret = secrets.token_urlsafe(32)
    needs.approvals.add_link(hash_of(secret), Link(approval.approval_id, approver))
    return mails.link_way(f"{base}/review/{secret}")
