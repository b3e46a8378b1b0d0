"""Commands in mails and on the page, to be copied: answer, release, deep health check, replay on the node.

In: an incident, its approval, the API's address. Out: shell lines that stay whole, none where a command has
nothing to do. Used by `mails` and by `request_approval`, which keeps two of them for the page.
"""

from __future__ import annotations

import shlex

from training_agent.contract import Alarm

from .approval import Action, Approval
from .decision_table import ROWS, Contain
from .incident import Incident, State
from .messages import COMMAND, check_command
from .replay_job import replay_job

LEAVES_NOTHING = (
    State.OBSERVED,
    State.CLOSED,
    State.REPLACED_BY_HYPERPOD,
    State.HUMAN_OVERRIDE,
    State.WORLD_CHANGED,
)  # ends after which nothing of ours is left to be released


def answers(approval: Approval, url: str) -> tuple[str, ...]:
    """`sdc` commands for the same answers to this question, signed by the caller's AWS credentials."""
    kinds = ["approve", "reject"] + ["reject --release"] * (approval.action is not Action.RELEASE)
    lines: list[str] = []
    for kind in kinds:
        verb, *flags = kind.split()
        lines.append(f"sdc {verb} {shlex.quote(approval.incident_id)} \\")
        if approval.node:
            lines.append(f"  --node {shlex.quote(approval.node)} \\")
        question = shlex.quote(approval.approval_id)
        lines.append(f"  --question {question} --action {approval.action.value} \\")
        lines.append(f"  --api {shlex.quote(url)} \\")
        lines.append("  " + " ".join([*flags, '--reason "why"']))
    return tuple(lines)


def release(incident: Incident, closing: State, url: str) -> tuple[str, ...]:
    """The command that puts back to work what stays cordoned or held, none where nothing does."""
    if incident.synthetic or not incident.touched or holds_nothing(incident) or closing in LEAVES_NOTHING:
        return ()
    where = (f"  --api {shlex.quote(url)} \\",) if url else ()
    return (
        "# back to work, once somebody has looked at it",
        f"sdc release {shlex.quote(incident.id)} \\",
        *where,
        '  --reason "why"',
    )


def holds_nothing(incident: Incident) -> bool:
    """Does its row contain nothing, and did none before it? A later row takes no cordon back."""
    row = ROWS.get(incident.decision_row or "")
    blameless = row is not None and row.contain is Contain.NOTHING
    return blameless and not any(t.cordoned_by_us for t in incident.targets)


def check_of(incident: Incident) -> str:
    """The deep health check that only a human may start, "" when that is not how confirm ended."""
    row = ROWS.get(incident.decision_row or "")
    if row is None or COMMAND not in incident.deep_check.note:
        return ""
    return check_command(incident, row.checks)


def check(incident: Incident) -> tuple[str, ...]:
    """The same with a line that says what it is."""
    command = check_of(incident)
    return ("# the deep health check, which only a person starts over several nodes", command) * bool(command)


def job_of(approval: Approval) -> tuple[str, ...]:
    """The Job that replays the alarm's capsule on the node that is asked about, as shell lines."""
    if approval.synthetic:
        return ()
    return replay_job(approval.incident_id, approval.node, approval.ranks, approval.alarm)


def job_after(incident: Incident, closing: State, alarm: Alarm | None) -> tuple[str, ...]:
    """The same in a notice, where the node is still there and a person looks for a cause."""
    if closing is not State.HANDED_TO_HUMAN or incident.synthetic or not incident.touched:
        return ()
    return replay_job(incident.id, incident.node or "", incident.ranks, alarm)


def replay(job: tuple[str, ...]) -> tuple[str, ...]:
    """With a line that says what it is."""
    return ("# the alarm's micro-batch again, on the node itself (fill in what is in CAPITALS)", *job) * bool(
        job
    )
