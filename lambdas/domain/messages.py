"""What people are sent and shown: mail subjects and texts, and the lines of the review page.

In: an incident, its alarm and decision. Out: plain text, 72 columns, ASCII subjects. Everything that came
over the wire is untrusted: control characters are removed here, HTML is escaped by the page's template.
"""

from __future__ import annotations

import textwrap

from training_agent.contract import Alarm, Finding

from .approval import Fact
from .decision_table import Row
from .incident import CheckResult, Incident
from .times import moment

COLUMNS = 72
MAX_SUBJECT = 99  # SNS: under 100 characters, one line


def one_line(text: str, limit: int = 300) -> str:
    """Printable, single-spaced, at most `limit` characters."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:limit]


def subject(incident: Incident, what: str) -> str:
    """ASCII, one line, under 100 characters; the node (or job) stands first and is never cut."""
    who = incident.node or f"job {incident.job.name}"
    text = f"[SDC] {one_line(who, 60)}: {what} (job {incident.job.name})"
    return one_line(text.encode("ascii", "replace").decode(), MAX_SUBJECT)


def paragraphs(*blocks: str) -> str:
    """Wrap each block to 72 columns; lines that start with "https://" or "http://" stay whole."""
    wrapped = []
    for block in blocks:
        lines = [
            line
            if line.startswith(("https://", "http://"))
            else textwrap.fill(line, COLUMNS, subsequent_indent="")
            for line in block.splitlines()
        ]
        wrapped.append("\n".join(lines))
    return "\n\n".join(b for b in wrapped if b) + "\n"


def facts(
    incident: Incident, alarm: Alarm, findings: tuple[Finding, ...], row: Row, reason: str
) -> tuple[Fact, ...]:
    """Lines that mail and page share."""
    target = incident.targets[0] if incident.targets else None
    resume = (
        f"step {alarm.resume_from.step}" if alarm.resume_from else "no checkpoint before the window is known"
    )
    lines = [
        ("Incident", incident.id),
        ("Node", incident.node or "nobody is named"),
        ("Instance", target.instance_id if target else "not proven"),
        ("Ranks", ", ".join(map(str, incident.ranks)) or "none"),
        ("GPUs", ", ".join(target.gpu_uuids) if target else ""),
        ("Job", f"{incident.job.name} (attempt {incident.job.attempt})"),
        (
            "Check",
            f"{alarm.check.value}, step {alarm.step} ({alarm.world_size} ranks on {alarm.nodes} nodes)",
        ),
        ("Suspect window", f"steps {alarm.suspect_window[0]} to {alarm.suspect_window[1]}"),
        ("Decision", f"{row.id}: {row.finding}; {row.meaning}"),
        ("Because", reason),
        ("Deep health check", _check(incident)),
        ("The job resumes from", resume),
    ]
    lines += [("Evidence", f.evidence) for f in findings if f.evidence]
    return tuple(Fact(label, one_line(text)) for label, text in lines if text)


def _check(incident: Incident) -> str:
    check = incident.deep_check
    if check.result is CheckResult.NOT_RUN:
        return ""
    return f"{check.result.value}: {check.note}" if check.note else check.result.value


def when(stamped: str) -> str:
    """A stored moment for people, to the minute."""
    return moment(stamped).strftime("%Y-%m-%d %H:%M UTC")


def warnings(incident: Incident) -> tuple[str, ...]:
    """Red lines of mail and page."""
    return (
        "Replacing destroys all volumes of the node, local NVMe included: "
        "a checkpoint folder on the node is lost.",
    )


def listing(lines: tuple[Fact, ...]) -> str:
    return "\n".join(textwrap.fill(f"{f.label}: {f.text}", COLUMNS, subsequent_indent="    ") for f in lines)


def approval_mail(incident: Incident, lines: tuple[Fact, ...], link: str, expires_at: str) -> tuple[str, str]:
    """Ask for a review: the link stands on its own line."""
    body = paragraphs(
        f"A training job accuses node {incident.node} of silent data corruption. It is cordoned, and the "
        "job's pods were moved off it. Replacing it needs a person's consent.",
        "Review (opening it changes nothing):\n" + link,
        f"The link ends at {when(expires_at)}. "
        "Without an answer the node stays cordoned and is not replaced.",
    )
    rest = "\n".join(
        [listing(lines), "", *(textwrap.fill("WARNING: " + w, COLUMNS) for w in warnings(incident))]
    )
    return subject(incident, "review a replacement"), body + "\n" + rest + "\n"


def notice_mail(
    incident: Incident, lines: tuple[Fact, ...], reason: str, *, observed: bool, issued: bool
) -> tuple[str, str]:
    """Tell a human: nothing further happens by itself."""
    if observed:
        lead = f"Observe mode: nothing was touched. {reason}."
        return subject(incident, "observed, nothing touched"), paragraphs(lead) + "\n" + listing(lines) + "\n"
    lead = f"The pipeline stopped and needs you: {reason}."
    kept = "What is cordoned or on hold stays so until a person releases it. Nothing was or will be replaced."
    if issued:
        kept = "A replacement was requested and its end was not seen: look at the cluster before you act."
    return subject(incident, "needs a human"), paragraphs(lead, kept) + "\n" + listing(lines) + "\n"


def expired_mail(incident: Incident, lines: tuple[Fact, ...]) -> tuple[str, str]:
    """Escalate silence."""
    lead = (
        "Nobody answered the review in time. The node stays cordoned and was not replaced; the link is dead."
    )
    return subject(incident, "review expired, still cordoned"), paragraphs(lead) + "\n" + listing(
        lines
    ) + "\n"
