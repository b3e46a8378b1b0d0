"""The pages that only tell: answered, used, expired, superseded, unknown, in trouble. None changes anything.

In: how an attempt ended, and the approval where the link led to one. Out: a page. They show no evidence, no
person and no reason: a link that is over may be in anybody's hands.
"""

from __future__ import annotations

from .deciding import Ended
from .domain.approval import Action, Answer, Approval, ApprovalState
from .domain.messages import when
from .domain.wording import wording
from .page import Response, page


def unknown() -> Response:
    return _page(404, "Unknown link", "This link leads nowhere. Open the newest mail and use its link whole.")


def not_allowed(method: str) -> Response:
    return _page(405, "Not allowed", f"This address answers {method} only.")


def refused() -> Response:
    text = "The form was not sent from its own page. Open the mailed link again; nothing was changed."
    return _page(403, "Refused", text)


def trouble() -> Response:
    return _page(503, "Try again", "The page could not be read. Nothing was changed. Reload it in a minute.")


def recorded(approval: Approval) -> Response:
    """The answer that was just given."""
    answer = approval.answer.value if approval.answer else ""
    words = wording(approval)
    follows = {"approve": words.if_approve, "keep": words.if_keep, "release": words.if_release}
    return _page(
        200,
        f"Your answer is recorded: {answer}.",
        words.question,
        follows.get(answer, ""),
        f"Incident {approval.incident_id}. All approvers get a mail about it; you can close this page.",
        approval=approval,
    )


def over(approval: Approval, ended: Ended) -> Response:
    """What became of a question that cannot be answered (any more)."""
    if ended is Ended.NOT_DELIVERED:
        return _page(
            503,
            "Recorded, not delivered yet",
            "Your answer is recorded. Send the form again in a minute to have it delivered; it is also "
            "delivered within five minutes without you.",
            approval=approval,
        )
    if ended is Ended.NOBODY_WAITS:
        text = (
            "Your answer is noted, and nobody waits for it at this moment: the incident has ended without "
            "it, or takes it up within five minutes. A mail tells all approvers when it counts."
        )
        return _page(410, "Nobody waits for this answer", text, approval=approval)
    if ended is Ended.USED and approval.decided:
        return _used(approval)
    if approval.state is ApprovalState.SUPERSEDED:
        text = "A newer question about this incident was mailed. Open the newest mail. Nothing was changed."
        return _page(410, "Superseded", text, approval=approval)
    if approval.state is ApprovalState.CLOSED:
        return _page(
            410,
            "Nothing is asked any more",
            "The node has gone or was launched again, or the pipeline has stopped and left the rest to "
            "people. Nothing was changed.",
            "How it ended is in the newest mail about this incident.",
            approval=approval,
        )
    left = "The node stays cordoned." if approval.node else "The job stays held."
    return _page(
        410,
        "Expired",
        f"This link expired at {when(approval.expires_at)}; nobody answered in time. Nothing was changed.",
        "" if approval.synthetic else f"{left} What is left to do is in the mail of that time.",
        approval=approval,
    )


def _used(approval: Approval) -> Response:
    """Answered before: by this link, another approver's, or the second click of the same button."""
    answer = approval.answer.value if approval.answer else ""
    at = f" at {when(approval.decided_at)}" if approval.decided_at else ""
    title = f"Already answered: {answer}"
    if approval.answer is Answer.APPROVE and approval.action is Action.REPLACE and not approval.synthetic:
        title = "Already approved: the node is replaced"
    return _page(
        410,
        title,
        f"This question was answered{at}: {answer}. Nothing was changed now.",
        "Who answered, and why, is in the mail that all approvers got.",
        approval=approval,
    )


def _page(status: int, title: str, *lines: str, approval: Approval | None = None) -> Response:
    synthetic = approval is not None and approval.synthetic
    return page("ended.html", status, title=title, lines=[x for x in lines if x], synthetic=synthetic)
