"""What mail and page share: subjects, the lines of facts, the red lines, moments for people.

In: an incident, its alarm and decision. Out: single lines of text, ASCII subjects. Everything that came over
the wire is untrusted: control and format characters are removed here, HTML is escaped by the page's template.
Next: `mails` and the page.
"""

from __future__ import annotations

import json
import shlex

from training_agent.contract import Alarm, Finding

from .approval import Action, Approval, Fact
from .decision_table import Row
from .incident import AuditClaim, CheckResult, Incident, Target
from .policy import is_floor
from .times import moment

COMMAND = "aws sagemaker start-cluster-health-check"
MAX_EVIDENCE = 40  # findings that are listed: SNS takes 256 KB, the approval's row 400 KB
MAX_SUBJECT = 99  # SNS: under 100 characters, one line


def one_line(text: str, limit: int = 300) -> str:
    """Printable, single-spaced, at most `limit` characters."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:limit]


def subject(incident: Incident, what: str) -> str:
    """ASCII, one line, under 100 characters; the node (or job) stands first and is never cut."""
    who = incident.node or f"job {incident.job.name}"
    tag = "[SDC FIRE DRILL]" if incident.synthetic else "[SDC]"
    text = f"{tag} {one_line(who, 60)}: {what}" + f" (job {incident.job.name})" * bool(incident.node)
    return one_line(text.encode("ascii", "replace").decode(), MAX_SUBJECT)


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
        ("Instance", target.instance_id if target else "not proven" * bool(incident.node)),
        ("Ranks", ", ".join(map(str, incident.ranks))),
        ("GPUs", ", ".join(target.gpu_uuids) if target else ""),
        ("Job", f"{incident.job.name} (attempt {incident.job.attempt})"),
        (
            "Check",
            f"{alarm.check.value}, step {alarm.step} ({alarm.world_size} ranks on {alarm.nodes} nodes)",
        ),
        ("Suspect window", f"steps {alarm.suspect_window[0]} to {alarm.suspect_window[1]}"),
        ("Decision", f"{row.id}: {row.finding}; {row.meaning}"),
        ("Because", "" if reason == row.meaning else reason),
        ("Deep health check", _check(incident)),
        ("The job resumes from", resume),
    ]
    said = [f.evidence for f in findings if f.evidence]
    lines += [("Evidence", text) for text in said[:MAX_EVIDENCE]]
    if len(said) > MAX_EVIDENCE:
        lines.append(("Evidence", f"{len(said) - MAX_EVIDENCE} more findings are kept with the incident"))
    lines += [("Telemetry", line) for line in incident.telemetry or ()]
    lines += [("Targeted audit", _claimed(a, target)) for a in incident.audits]
    return tuple(Fact(label, one_line(text)) for label, text in lines if text)


def _claimed(audit: AuditClaim, target: Target | None) -> str:
    """A pass of another GPU of the node says nothing about the accused one."""
    said = f"{'passed' if audit.passed else 'computed wrong again'} (capsule {audit.capsule_hash[:12]})"
    if target is None or not target.gpu_uuids or audit.gpu in target.gpu_uuids:
        return said
    return f"{said}, on {audit.gpu or 'a GPU that it does not name'}: not known to be the accused one"


def decision(approval: Approval) -> str:
    """Who answered what, when and why: the audit trail's line, which reports show."""
    answer = approval.answer.value if approval.answer else "nothing"
    at = f" at {when(approval.decided_at)}" if approval.decided_at else ""
    said = f"{one_line(approval.decided_by)} answered '{answer}' to '{approval.action.value}'{at}"
    return f"{said}: {one_line(approval.reason)}"


def _check(incident: Incident) -> str:
    check = incident.deep_check
    if check.result is CheckResult.NOT_RUN:
        return ""
    note = check.note.partition(COMMAND)[0].rstrip(": ")  # the command stands whole, elsewhere
    return f"{check.result.value}: {note}" if note else check.result.value


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
        f"{COMMAND} --cluster-name {shlex.quote(incident.cluster)} "
        f"--deep-health-check-configurations {shlex.quote(json.dumps(configurations))}"
    )
