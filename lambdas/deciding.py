"""One decision on one approval, the same for the page and for signed requests.

In: the row, an answer, a reason, who. Out: how it ended. DECIDED and DELIVERED are two states: what was
recorded and not delivered is delivered by the next attempt, here, by the reconciler or by the timeout branch.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from .domain.approval import Answer, Approval, ApprovalState
from .domain.errors import CallbackGoneError, PipelineError
from .observability import logger
from .ports import Approvals, Callback, Clock

DEFAULT_TIMEOUT_SECONDS = 3600  # of a further wait for a human; `decide` sets the real one


class Ended(str, Enum):
    """How an attempt to decide ended."""

    DELIVERED = "delivered"
    NOT_DELIVERED = "not delivered"  # recorded; the same attempt again delivers it
    NOBODY_WAITS = "nobody waits"  # recorded, and the execution has gone on
    USED = "used"  # decided before: nothing was changed
    OVER = "over"  # expired or superseded: nothing was changed


class Deciders(Protocol):
    @property
    def approvals(self) -> Approvals: ...
    @property
    def callback(self) -> Callback: ...
    @property
    def clock(self) -> Clock: ...


def standing(approval: Approval, needs: Deciders) -> Ended | None:
    """None when it can be decided now; DECIDED rows are delivered instead."""
    if approval.state is ApprovalState.DECIDED:
        return deliver(needs, approval)
    if approval.decided:
        return Ended.USED
    pending = approval.state is ApprovalState.PENDING and not approval.expired(needs.clock.now())
    return None if pending else Ended.OVER


def decide(needs: Deciders, approval: Approval, answer: Answer, reason: str, by: str) -> Ended:
    """Record once, by conditional write, then tell the waiting execution."""
    if not needs.approvals.decide(approval.approval_id, answer, reason, by, needs.clock.now()):
        again = needs.approvals.get(approval.approval_id)
        return Ended.USED if again is not None and again.decided else Ended.OVER
    logger.info("decided", extra={"incident_id": approval.incident_id, "answer": answer.value})
    decided = needs.approvals.get(approval.approval_id)
    assert decided is not None
    return deliver(needs, decided)


def deliver(needs: Deciders, approval: Approval) -> Ended:
    """Tell the waiting execution what the row says (never what a form says)."""
    token = needs.approvals.task_token(approval.approval_id) or ""
    try:
        try:
            needs.callback.succeed(token, answer_of(approval))
        except CallbackGoneError:
            # At the reminder's instant the execution begins another wait, with another token in the row.
            newest = needs.approvals.task_token(approval.approval_id) or ""
            if newest == token:
                raise
            needs.callback.succeed(newest, answer_of(approval))
    except CallbackGoneError:
        return Ended.NOBODY_WAITS
    except PipelineError as e:
        logger.error("not delivered", extra={"incident_id": approval.incident_id, "reason": type(e).__name__})
        return Ended.NOT_DELIVERED
    needs.approvals.mark_delivered(approval.approval_id)
    return Ended.DELIVERED


def answer_of(approval: Approval) -> dict[str, object]:
    """What the execution that waits is told; the next step reads the row all the same."""
    return {
        "incident_id": approval.incident_id,
        "outcome": approval.outcome,
        "story": f"a human answered: {approval.answer.value if approval.answer else ''}",
        "wait_seconds": 0,
        "approval_timeout_seconds": DEFAULT_TIMEOUT_SECONDS,
        "patience_seconds": DEFAULT_TIMEOUT_SECONDS,
    }
