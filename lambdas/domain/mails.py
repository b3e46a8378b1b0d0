"""Every kind of mail: who is asked for what, what was decided, what stopped, what nobody answered.

In: an incident, its approval and facts. Out: subject and body; the body by the one template of `letter`, the
words of a question by `wording`. Used by `request_approval`, and by `reconcile` for what it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from training_agent.contract import Alarm, console_url

from . import commands
from .approval import Approval, Fact
from .decision_table import ROWS, Contain
from .incident import GONE, Incident, State
from .letter import Letter, render
from .messages import one_line, subject, when
from .times import moment
from .wording import SURE, Wording, wording

Mail = tuple[str, str]
BY_HAND = "docs/operate.md, To put a node back by hand"
STILL_HELD = "Once the kill switch is off and the mode allows it, let the job go by the command below."
DRILL = "FIRE DRILL: no node is accused and none can be replaced."


@dataclass(frozen=True, slots=True)
class Notice:
    """One way to end that needs a person."""

    subject: str
    happened: str
    todo: str


NOTICES = {
    State.OBSERVED: Notice(
        "observed, nothing touched",
        "Observe mode: nothing was touched.",
        "Nothing has to be done. Compare it with what you know of this node: the next mode would act on it.",
    ),
    State.CLOSED: Notice(
        "needs a human", "The drill stopped where a real incident would have needed you.", "Nothing."
    ),
    State.REPLACED_BY_HYPERPOD: Notice(
        "gone without us",
        "The node is gone: HyperPod has replaced it by itself. It is not replaced again.",
        "See that the job is back; nothing else is left to do.",
    ),
    State.REPLACED: Notice(
        "replaced, the job is still held",
        "The node was replaced, and its quarantine could not be released: the job is held by it.",
        STILL_HELD,
    ),
    State.TERMINATED_NO_DEMAND: Notice(
        "the node is gone, the job is still held",
        "The node is gone and nothing took its place, as no pod waits for one; its quarantine could not be "
        "released: the job is held by it.",
        STILL_HELD,
    ),
    State.REPLACEMENT_DEGRADED: Notice(
        "replacement degraded",
        "A replacement was requested and its end was not seen.",
        "Look at the cluster before you act. Nothing else is replaced until a person closes the breaker.",
    ),
    State.NO_APPROVER: Notice(
        "nobody could be asked",
        "A question had to be asked, and no approver's e-mail subscription was confirmed.",
        "Confirm a subscription (docs/operate.md, Approvers), then decide on this node by hand "
        "(To put a node back by hand).",
    ),
    State.HUMAN_OVERRIDE: Notice(
        "a person acted first",
        "Somebody acted on the node, and a person's act wins: the pipeline leaves it alone.",
        "Whoever cordoned, uncordoned or restarted it decides how it goes on.",
    ),
    State.WORLD_CHANGED: Notice(
        "the node has changed",
        "The node is not the one any more that the evidence is about.",
        "Nothing is to be done for this alarm. A fault that is still there alarms again.",
    ),
    State.BLOCKED_BY_BREAKER: Notice(
        "blocked by the breaker",
        "Replacements are stopped: over the budget, or one before went wrong.",
        "Many bad nodes at once are software until proven otherwise. Find the cause, then close the breaker "
        "with a reason (docs/operate.md, Close the breaker).",
    ),
    State.HEALTHCHECK_STUCK: Notice(
        "deep health check stuck",
        "The deep health check was started and did not end within four hours.",
        "Look at the node's instance status; it stays cordoned until a person decides.",
    ),
    State.HANDED_TO_HUMAN: Notice(
        "needs a human",
        "The pipeline stopped and needs you.",
        "Ask first whether it is hardware: does it follow the node when the job moves, or does it come again "
        f"on other nodes with the same seed? Then back to work, or replaced ({BY_HAND}).",
    ),
}
NO_NODE_BLAMED = Notice(
    "needs a human, no node is blamed",
    "The alarm points at no GPU, so no node was touched.",
    "Look for the cause in software, configuration or data; the facts say where it was seen.",
)


NO_NODE_BLAMED_NOW = Notice(
    "no node is blamed any more, one stays cordoned",
    "What came in since points at no GPU. The node was cordoned before, on what was known then, and "
    "stays so: that is yours to decide.",
    "Look for the cause in software, configuration or data; the facts say where it was seen. Then put the "
    f"node back to work ({BY_HAND}).",
)


def approval_mail(
    incident: Incident, approval: Approval, way: tuple[str, ...], url: str, *, reminder: bool = False
) -> Mail:
    """Ask for a review; `way` is where to answer, `url` the base that the command line signs for."""
    words = wording(approval)
    until = f"Nobody has answered yet. Answer by {when(approval.expires_at)}; any link of yours will do."
    if not reminder:
        until = deadline(approval)
    body = Letter(
        opening=(
            *(f"{line} Please answer all the same." for line in _drill(incident)),
            words.question,
            f"{until} Nothing happens without a person's yes.",
            words.why,
            words.sure and f"How sure? {words.sure}",
        ),
        warnings=() if approval.synthetic else approval.warnings,
        way=way,
        outcomes=_outcomes(words),
        commands=(
            *commands.answers(approval, url),
            *commands.check(incident),
            *commands.replay(commands.job_of(approval)),
        ),
        facts=approval.facts,
        console=console_url(approval.execution),
    )
    return subject(incident, "reminder, " * reminder + words.subject), render(body)


def deadline(approval: Approval) -> str:
    """Until when, and how long that is."""
    left = moment(approval.expires_at) - moment(approval.created_at)
    hours, minutes = divmod(round(left.total_seconds() / 60), 60)
    long = f"{hours} h" if not minutes else f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return f"Answer within {long}: by {when(approval.expires_at)}."


def link_way(link: str) -> tuple[str, ...]:
    return ("Review (opening it changes nothing; the link is yours alone):", link)


def signed_way(route: str) -> tuple[str, ...]:
    return ("Links are switched off. Answer by the command line below, or by a signed POST:", route)


def decision_mail(incident: Incident, approval: Approval) -> Mail:
    """Tell everybody what was decided, by whom and why."""
    answer = approval.answer.value if approval.answer else "nothing"
    words = wording(approval)
    follows = {"approve": words.if_approve, "keep": words.if_keep, "release": words.if_release}
    body = Letter(
        opening=(
            *_drill(incident),
            f"{one_line(approval.decided_by, 200)} answered '{answer}' to: {words.question}",
            f"Reason: {one_line(approval.reason)}",
        ),
        outcomes=(Fact("From here", follows.get(answer, "")),),
        todo=("Nothing. Links to this question are used up.",),
        facts=approval.facts[:3],
        console=console_url(approval.execution),
    )
    return subject(incident, f"decided: {answer}"), render(body)


def notice_mail(
    incident: Incident,
    facts: tuple[Fact, ...],
    reason: str,
    closing: State,
    *,
    issued: bool,
    console: str = "",
    alarm: Alarm | None = None,
    url: str = "",
) -> Mail:
    """Tell a human: nothing further happens by itself. `issued`: a replacement may be under way."""
    row = ROWS.get(incident.decision_row or "")
    blameless = row is not None and row.contain is Contain.NOTHING
    notice = NOTICES[closing]
    if blameless and closing is State.HANDED_TO_HUMAN:
        notice = NO_NODE_BLAMED if commands.holds_nothing(incident) else NO_NODE_BLAMED_NOW
    body = Letter(
        opening=(*_drill(incident), notice.happened, f"Because: {reason}.", _left(incident, closing, issued)),
        meaning=(SURE[row.id],) if row is not None and not incident.synthetic else (),
        todo=(notice.todo,),
        commands=(
            *commands.release(incident, closing, url),
            *(commands.check(incident) if closing not in GONE else ()),
            *commands.replay(commands.job_after(incident, closing, alarm)),
        ),
        facts=tuple(f for f in facts if f.label != "Because"),
        console=console,
    )
    return subject(incident, notice.subject), render(body)


def expired_mail(incident: Incident, approval: Approval, url: str = "") -> Mail:
    """Escalate silence."""
    words = wording(approval)
    left, todo = "still cordoned", f"Decide by hand: back to work, or replaced ({BY_HAND})."
    if not approval.node:
        left, todo = "still held", f"Decide by hand: end the job, or let it go on ({BY_HAND})."
    if approval.synthetic:
        left, todo = (
            "nobody answered",
            "Find out why this mail was not read: a real one would have waited too.",
        )
    body = Letter(
        opening=(
            *_drill(incident),
            f"Nobody answered in time: {words.question}",
            "Silence is no consent: nothing was replaced, and nothing will be.",
        ),
        meaning=(words.sure,) if words.sure else (),
        todo=(f"The links are dead. {todo}",),
        commands=commands.release(incident, State.EXPIRED, url),
        facts=approval.facts,
        console=console_url(approval.execution),
    )
    return subject(incident, f"review expired, {left}"), render(body)


def _drill(incident: Incident) -> tuple[str, ...]:
    return (DRILL,) if incident.synthetic else ()


def _left(incident: Incident, closing: State, issued: bool) -> str:
    """What stays behind, "" where the notice says it already."""
    if closing is State.REPLACEMENT_DEGRADED or closing in GONE:
        return ""
    if issued:
        return "A replacement was requested and its end was not seen: look at the cluster before you act."
    if not incident.touched:
        return "Nothing was touched."
    if closing in commands.LEAVES_NOTHING:
        return "The pipeline has replaced nothing and will not."
    if commands.holds_nothing(incident):
        return "No node was cordoned, and the job need not wait."
    return "What is cordoned or on hold stays so until a person releases it. Nothing was or will be replaced."


def _outcomes(words: Wording) -> tuple[Fact, ...]:
    lines = (
        ("If you approve", words.if_approve),
        ("If you reject and keep", words.if_keep),
        ("If you reject and release", words.if_release),
        ("If nobody answers", words.if_silence),
    )
    return tuple(Fact(label, text) for label, text in lines if text)
