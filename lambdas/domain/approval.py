"""The approval: what a human is asked, and the row that records the answer.

Written by `request_approval`, decided on the page, read again by `replace` and `resume`. Only the hash of the
link's secret is kept; the task token never leaves the row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from .errors import NeedsHumanError
from .incident import Incident
from .times import moment

TYPED_CHARACTERS = 6  # of the instance id's end, to be typed by the approver


class Action(str, Enum):
    """What is asked for."""

    REPLACE = "replace"


class Answer(str, Enum):
    """What a human may answer; silence is none of them."""

    APPROVE = "approve"
    KEEP = "keep"  # rejected, stays cordoned
    RELEASE = "release"  # rejected, goes back to work


class ApprovalState(str, Enum):
    PENDING = "PENDING"
    DECIDED = "DECIDED"  # recorded, the execution may not know yet
    DELIVERED = "DELIVERED"  # the execution was told
    EXPIRED = "EXPIRED"
    SUPERSEDED = "SUPERSEDED"  # its mail was not known to be sent; a newer link was mailed


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the page: a label and untrusted text, escaped by the template."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Approval:
    """The row without its task token."""

    approval_id: str  # SHA-256 (hex) of the link's secret
    incident_id: str
    action: Action
    node: str
    instance_id: str
    evidence_hash: str
    created_at: str
    expires_at: str
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()
    state: ApprovalState = ApprovalState.PENDING
    mailed: bool = False
    answer: Answer | None = None
    reason: str = ""
    decided_at: str | None = None
    decided_by: str = ""

    @property
    def typed_value(self) -> str:
        return self.instance_id[-TYPED_CHARACTERS:]

    @property
    def decided(self) -> bool:
        return self.state in (ApprovalState.DECIDED, ApprovalState.DELIVERED)

    def expired(self, now: datetime) -> bool:
        return now >= moment(self.expires_at)


def hash_of(secret: str) -> str:
    """The row's key for the secret in a link."""
    return hashlib.sha256(secret.encode()).hexdigest()


def require_approved(approval: Approval | None, incident: Incident, evidence: str, now: datetime) -> None:
    """Refuse unless a human approved exactly this action on exactly this node and evidence, in time.

    Raises:
        NeedsHumanError: says which of these does not hold.
    """
    if approval is None:
        raise NeedsHumanError("no approval stands for this incident: nothing was replaced")
    if not approval.decided or approval.answer is not Answer.APPROVE:
        raise NeedsHumanError(f"the approval is {approval.state.value}, not approved: nothing was replaced")
    if approval.expired(now):
        raise NeedsHumanError("the approval has expired before the replacement began: ask anew")
    bound = (approval.incident_id, approval.action, approval.instance_id, approval.evidence_hash)
    if bound != (incident.id, Action.REPLACE, incident.instance_id, evidence):
        raise NeedsHumanError("the approval is for another incident, node or evidence: ask anew")
