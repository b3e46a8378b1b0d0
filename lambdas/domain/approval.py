"""The approval: what a human is asked, and the row that records the answer.

Written by `request_approval`, decided on the page, read again by `replace` and `resume`. Only the hash of the
link's secret is kept; the task token never leaves the row.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from training_agent.contract import Alarm

from .errors import NeedsHumanError
from .incident import Action, Incident
from .telemetry import Reading
from .times import moment

__all__ = [
    "EVERYBODY",
    "Action",
    "Answer",
    "Approval",
    "ApprovalState",
    "Fact",
    "Link",
    "Past",
    "hash_of",
    "require_approved",
]

EVERYBODY = "*"  # in `mailed`: the version before had one link for all
TYPED_CHARACTERS = 6  # of the instance id's end, to be typed by the approver


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
    SUPERSEDED = "SUPERSEDED"  # a newer question about the incident stands, whatever was answered to this one
    CLOSED = "CLOSED"  # nothing is asked any more: the node is another one now, or the pipeline stopped


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the page: a label and untrusted text, escaped by the template."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier incident of this instance or GPU."""

    at: str  # UTC
    subject: str  # "instance" or "GPU"
    row: str  # of the decision table
    incident_id: str


@dataclass(frozen=True, slots=True)
class Approval:
    """The row without its task token; all that the page shows, which reads nothing else."""

    approval_id: str  # "<incident id>-<number of the question>"; links point at it by their own hash
    incident_id: str
    action: Action
    node: str
    instance_id: str  # "" for a held job
    evidence_hash: str
    created_at: str
    expires_at: str
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()
    state: ApprovalState = ApprovalState.PENDING
    mailed: tuple[str, ...] = ()  # approvers whose mail is known to be sent
    answer: Answer | None = None
    reason: str = ""
    decided_at: str | None = None
    decided_by: str = ""
    job_uid: str = ""  # of a held job, which has no instance
    row: str = ""  # of the decision table; "" in rows of the version before, as everything below
    alarm: Alarm | None = None  # the evidence itself, as bound by `evidence_hash`
    ranks: tuple[int, ...] = ()  # accused
    history: tuple[Past, ...] = ()  # newest first
    telemetry: tuple[Reading, ...] = ()
    command: str = ""  # the deep health check that only a human may start
    synthetic: bool = False  # a fire drill
    execution: str = ""  # ARN of the one that waits for the answer

    @property
    def typed_value(self) -> str:
        return (self.instance_id or self.job_uid)[-TYPED_CHARACTERS:]

    @property
    def answers(self) -> tuple[Answer, ...]:
        """What may be answered: a held job has nothing to be released beside itself."""
        return (Answer.APPROVE, Answer.KEEP) if self.action is Action.RELEASE else tuple(Answer)

    @property
    def outcome(self) -> str:
        """What the state machine is told, by the row and by nothing else."""
        if self.answer is Answer.APPROVE:
            return _APPROVED[self.action]
        return "rejected_release" if self.answer is Answer.RELEASE else "rejected_keep"

    @property
    def decided(self) -> bool:
        return self.state in (ApprovalState.DECIDED, ApprovalState.DELIVERED)

    def mailed_to(self, approver: str) -> bool:
        return approver in self.mailed or EVERYBODY in self.mailed

    def expired(self, now: datetime) -> bool:
        return now >= moment(self.expires_at)


_APPROVED = {Action.REPLACE: "approved", Action.DEEP_CHECK: "check_approved", Action.RELEASE: "released"}


@dataclass(frozen=True, slots=True)
class Link:
    """What one approver's link leads to; its key is the hash of the secret."""

    approval_id: str
    approver: str


def hash_of(secret: str) -> str:
    """The row's key for the secret in a link."""
    return hashlib.sha256(secret.encode()).hexdigest()


def require_approved(
    approval: Approval | None,
    incident: Incident,
    evidence: str,
    now: datetime,
    action: Action = Action.REPLACE,
) -> None:
    """Refuse unless a human approved exactly this action on exactly this node and evidence, in time.

    Raises:
        NeedsHumanError: says which of these does not hold.
    """
    if approval is None:
        raise NeedsHumanError("no approval stands for this incident: nothing was done")
    if not approval.decided or approval.answer is not Answer.APPROVE:
        raise NeedsHumanError(f"the approval is {approval.state.value}, not approved: nothing was done")
    if approval.expired(now):
        raise NeedsHumanError("the approval has expired before anything began: ask anew")
    bound = (approval.incident_id, approval.action, approval.instance_id, approval.evidence_hash)
    if bound != (incident.id, action, incident.instance_id or "", evidence):
        raise NeedsHumanError("the approval is for another incident, node or evidence: ask anew")
