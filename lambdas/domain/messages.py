"""What people are sent and shown: mail subjects and texts, and the lines of the review page.

In: an incident, its alarm and decision. Out: plain text, 72 columns, ASCII subjects. Everything that came
over the wire is untrusted: control characters are removed here, HTML is escaped by the page's template.
"""

from __future__ import annotations

import json
import textwrap

from training_agent.contract import Alarm, Finding

from .approval import Action, Approval, Fact
from .decision_table import ROWS, Contain, Row
from .incident import CheckResult, Incident
from .policy import is_floor
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
    tag = "[SDC FIRE DRILL]" if incident.synthetic else "[SDC]"
    text = f"{tag} {one_line(who, 60)}: {what} (job {incident.job.name})"
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
    lines += [("Telemetry", line) for line in incident.telemetry or ()]
    lines += [
        (
            "Targeted audit",
            f"{'passed' if a.passed else 'computed wrong again'} (capsule {a.capsule_hash[:12]})",
        )
        for a in incident.audits
    ]
    return tuple(Fact(label, one_line(text)) for label, text in lines if text)


def _check(incident: Incident) -> str:
    check = incident.deep_check
    if check.result is CheckResult.NOT_RUN:
        return ""
    return f"{check.result.value}: {check.note}" if check.note else check.result.value


def when(stamped: str) -> str:
    """A stored moment for people, to the minute."""
    return moment(stamped).strftime("%Y-%m-%d %H:%M UTC")


def warnings(incident: Incident, budget_percent: float) -> tuple[str, ...]:
    """Red lines of mail and page, by what is asked for."""
    if incident.asking is Action.RELEASE:
        return ("Nobody was found to blame: the same fault may come back at the same step.",)
    lines: tuple[str, ...] = ("Replacing destroys all volumes of the node, local NVMe included: "
             "a checkpoint folder on the node is lost.",)  # fmt: skip
    if incident.asking is Action.DEEP_CHECK:
        own = "NodeRecovery is Automatic: the check itself may reboot or replace the node, unasked."
        return (own, *lines)
    running = incident.targets[0].running_in_group if incident.targets else 0
    if is_floor(budget_percent, running):
        share = f"{budget_percent:g} % of the {running} Running nodes of its group"
        lines = (f"The budget allows this only by its floor of one: {share} is less than a node.", *lines)
    return lines


def listing(lines: tuple[Fact, ...]) -> str:
    return "\n".join(textwrap.fill(f"{f.label}: {f.text}", COLUMNS, subsequent_indent="    ") for f in lines)


_ASKED = {
    Action.REPLACE: ("review a replacement", "Replacing it needs a person's consent."),
    Action.DEEP_CHECK: (
        "review a deep health check",
        "A deep health check would tell more and may itself replace the node: it needs a person's consent.",
    ),
    Action.RELEASE: ("a job is held", "Letting it go, back to before the alarm, needs a person's consent."),
}


def approval_mail(incident: Incident, approval: Approval, way: str) -> tuple[str, str]:
    """Ask for a review; `way` is where to answer: a link, or the signed route."""
    what, need = _ASKED[approval.action]
    row = ROWS.get(incident.decision_row or "")
    isolated = row is not None and row.contain is Contain.ISOLATE
    accused = (
        f"A training job accuses node {incident.node} of silent data corruption. It is cordoned"
        f"{', and the job was moved off it' if isolated else ''}. {need}"
    )
    if approval.action is Action.RELEASE:
        accused = f"Job {one_line(incident.job.name, 60)} is held after an alarm that names nobody. {need}"
    silence = "Without an answer everything stays as it is: cordoned or held, and nothing is replaced."
    body = paragraphs(_drill(incident), accused, way, f"This ends at {when(approval.expires_at)}. {silence}")
    red = "\n".join(textwrap.fill("WARNING: " + w, COLUMNS) for w in approval.warnings)
    return subject(incident, what), body + "\n" + listing(approval.facts) + "\n\n" + red + "\n"


def link_way(link: str) -> str:
    return "Review (opening it changes nothing; the link is yours alone):\n" + link


def signed_way(route: str) -> str:
    return "Links are switched off. Answer by a request signed with your AWS credentials:\n" + route


def decision_mail(incident: Incident, approval: Approval) -> tuple[str, str]:
    """Tell everybody what was decided, by whom and why."""
    answer = approval.answer.value if approval.answer else "nothing"
    lead = (
        f"{one_line(approval.decided_by, 200)} answered '{answer}' to '{approval.action.value}'. "
        f"Reason: {one_line(approval.reason)}. The pipeline goes on from here."
    )
    text = paragraphs(_drill(incident), lead) + "\n" + listing(approval.facts[:3]) + "\n"
    return subject(incident, f"decided: {answer}"), text


def _drill(incident: Incident) -> str:
    return (
        "FIRE DRILL: no node is accused and none can be replaced. Please answer all the same."
        * incident.synthetic
    )


def check_command(incident: Incident, checks: tuple[str, ...]) -> str:
    """The deep health check that a human starts: over several nodes it is never the pipeline's."""
    groups = sorted({t.group for t in incident.targets}) or ["<group>"]
    of_group = {
        g: [t.instance_id for t in incident.targets if t.group == g] or ["<instance>"] for g in groups
    }
    configurations = [
        {"InstanceGroupName": g, "InstanceIds": of_group[g], "DeepHealthChecks": list(checks)} for g in groups
    ]
    return (
        f"aws sagemaker start-cluster-health-check --cluster-name {incident.cluster} "
        f"--deep-health-check-configurations '{json.dumps(configurations)}'"
    )


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
