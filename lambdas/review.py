"""The page that asks: question, why, how sure, what will happen; pictures; the form; then all the evidence.

In: an approval and, after a mistake, what was filled in. Out: the page. Everything on it stands in the
approval's row, which the answer is bound to; nothing else is read.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from training_agent.contract import Alarm, console_url, to_plain
from training_agent.pictures import Picture, ring, timeline

from .domain import commands, mails
from .domain.approval import Approval
from .domain.wording import CHECKLIST, wording
from .page import Response, page
from .sparklines import sparklines

MAX_RAW = 100_000  # characters of evidence on the page; the alarm itself is under 64 KB
TYPED, REASON, DECISION = "typed", "reason", "decision"


@dataclass(frozen=True, slots=True)
class Mistake:
    """What to correct, and which field of the form it is about."""

    field: str
    text: str


def mistake_in(form: Mapping[str, str], approval: Approval) -> Mistake | None:
    """The first thing to correct, None when the form is complete."""
    if form.get(DECISION) not in [a.value for a in approval.answers]:
        return Mistake(DECISION, "Choose one of the answers.")
    typed, wanted = form.get(TYPED, "").strip().lower(), approval.typed_value.lower()
    if not hmac.compare_digest(typed.encode(), wanted.encode()):
        what = "instance id" if approval.instance_id else "job's uid"
        text = f"What you typed is not the last {len(wanted)} characters of the {what}; nothing was recorded."
        return Mistake(TYPED, text)
    if not form.get(REASON, "").strip():
        return Mistake(REASON, "Give a reason; it is kept with the incident.")
    return None


def review(
    approval: Approval, mistake: Mistake | None = None, given: Mapping[str, str] | None = None
) -> Response:
    """The question; status 400 when a form has to be corrected."""
    return page(
        "review.html",
        200 if mistake is None else 400,
        approval=approval,
        words=wording(approval),
        deadline=mails.deadline(approval),
        warnings=() if approval.synthetic else approval.warnings,
        pictures=_pictures(approval),
        checklist=CHECKLIST,
        raw=_raw(approval.alarm),
        job="\n".join(commands.job_of(approval)),
        console=console_url(approval.execution),
        mistake=mistake,
        given={name: (given or {}).get(name, "") for name in (DECISION, TYPED, REASON)},
    )


def _pictures(approval: Approval) -> tuple[Picture, ...]:
    """None for a question of the version before, whose row holds no alarm."""
    if approval.alarm is None:
        return ()
    alarm = approval.alarm
    drawn = (ring(alarm, approval.ranks), timeline(alarm), sparklines(approval.telemetry))
    return tuple(picture for picture in drawn if picture is not None)


def _raw(alarm: Alarm | None) -> str:
    """The alarm as JSON in ASCII: what is invisible or turns the text's direction shows as its escape."""
    if alarm is None:
        return ""
    text = json.dumps(to_plain(alarm), indent=1, sort_keys=True, ensure_ascii=True)
    return text if len(text) <= MAX_RAW else text[:MAX_RAW] + "\n(cut here)"
