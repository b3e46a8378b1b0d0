"""Commands that change something: approve, reject, release, drill, clear. In: options. Out: text or JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import restarts
from ..contract import NODE_NAME_PREFIX, to_plain
from . import clear as clear_
from .failures import CannotAskError, CliError, Exit, RefusedError
from .pipeline import Pipeline
from .screen import Screen

POLL_S = 1.0
DRILL_JOB = "fire-drill"  # as the drill's function names its job
ANSWERS = {
    "approve": "Approved.",
    "keep": "Rejected: the node stays cordoned.",
    "release": "Rejected: the node goes back to work.",
}


@dataclass(frozen=True, slots=True)
class Meant:
    """Which question a caller answers, as its mail or `sdc show` names it; None: left out."""

    node: str | None  # hyperpod-i-... or i-...; none for a held job
    question: str | None
    action: str | None  # replace, deep_check or release


def decide(
    screen: Screen, pipeline: Pipeline, incident_id: str, answer: str, meant: Meant, reason: str
) -> Exit:
    """Answer one question of the incident, after comparing what the caller means with what is asked now.

    Raises:
        RefusedError: nothing is asked, it is another node or question, or the pipeline said no.
    """
    found = pipeline.incident(incident_id)
    asked, incident = found.get("approval"), found["incident"]
    remedy = f"`sdc show {incident_id}` says where it stands."
    if not asked:
        raise RefusedError(f"Incident {incident_id} ({incident['state']}) asks nothing.", remedy)
    instance = str(asked.get("instance_id") or "")
    _compare(asked, instance, meant, remedy)
    if not reason.strip():
        raise RefusedError("A decision needs a reason; it is kept.", 'Give --reason "..."')
    got = pipeline.decide(incident_id, answer, reason, asked)
    recorded = got.get("approval") or {}
    screen.document({"incident_id": incident_id, **got})
    screen.line(f"{ANSWERS[answer]} {incident_id}: {asked['action']} of {instance or 'the held job'}")
    screen.line(f"Recorded as {recorded.get('decided_by')}; {got.get('result')}.")
    screen.line(f"Next: sdc show {incident_id} --follow")
    return Exit.DONE


def options(asked: Mapping[str, Any]) -> tuple[str, ...]:
    """What names the question that is asked, as options of `sdc approve` and `sdc reject`."""
    node = (f"--node {NODE_NAME_PREFIX}{asked['instance_id']}",) if asked.get("instance_id") else ()
    return (*node, f"--question {asked['question']}", f"--action {asked['action']}")


def _compare(asked: Mapping[str, Any], instance: str, meant: Meant, remedy: str) -> None:
    """Refuse unless the caller named exactly this node, this question and what it asks for."""
    if not meant.question or not meant.action or (instance and not meant.node):
        subject = NODE_NAME_PREFIX + instance if instance else "the held job"
        raise RefusedError(
            f"It asks for {asked['action']} of {subject}; you did not name all of it.",
            f"If that is what you mean: {' '.join(options(asked))}",
        )
    if (meant.node or "").removeprefix(NODE_NAME_PREFIX) != instance:
        raise RefusedError(f"It is about {instance or 'the whole job'}, not about {meant.node}.", remedy)
    if (meant.question, meant.action) != (asked["question"], asked["action"]):
        raise RefusedError(
            f"It asks {asked['question']} now, for {asked['action']}; "
            f"you answer {meant.question}, for {meant.action}.",
            remedy,
        )


def release(screen: Screen, pipeline: Pipeline, incident_id: str, reason: str) -> Exit:
    """Put back to work what an ended incident left cordoned and held.

    Raises:
        NotFoundError: there is no such incident.
        RefusedError: no reason, or the pipeline said no.
    """
    if not reason.strip():
        raise RefusedError("A release needs a reason; it is kept.", 'Give --reason "..."')
    pipeline.incident(incident_id)
    got = pipeline.release(incident_id, reason)
    screen.document({"incident_id": incident_id, **got})
    screen.line(f"Released: {got.get('story')}.")
    return Exit.DONE


def drill(screen: Screen, pipeline: Pipeline, timeout_s: float) -> Exit:
    """Start one, wait until it asks the approvers; 1 when it does not, or while an earlier one is open."""
    standing = pipeline.incidents()
    before = {i["incident_id"] for i in standing}
    if earlier := next((i for i in standing if i["synthetic"] and i["job"] == DRILL_JOB), None):
        found = {"incident_id": earlier["incident_id"], "state": earlier["state"]}
        screen.document({"job_uid": None, **found, "ok": False, "seconds": 0.0})
        screen.line(
            f"No drill was started: {earlier['incident_id']} is still open ({earlier['state']}), and a new "
            "one would only join it. Answer it first."
        )
        return Exit.NO
    uid = pipeline.drill()
    began, incident_id, state = time.monotonic(), None, "not opened"
    with screen.progress("the drill's alarm is on the bus") as progress:
        while time.monotonic() - began < timeout_s:
            fresh = [i for i in pipeline.incidents() if i["incident_id"] not in before]
            mine = next((i for i in fresh if i["synthetic"] and i["job"] == DRILL_JOB), None)
            if mine is not None:
                incident_id, state = mine["incident_id"], mine["state"]
                progress.say(f"incident {incident_id}: {state}")
                if state == "AWAITING_APPROVAL":
                    break
            elif incident_id is not None:  # ended without a question, as in mode observe
                state = pipeline.incident(incident_id)["incident"]["state"]
                break
            time.sleep(POLL_S)
    came_through = state in ("AWAITING_APPROVAL", "OBSERVED", "CLOSED")
    seconds = round(time.monotonic() - began, 1)
    screen.document(
        {"job_uid": uid, "incident_id": incident_id, "state": state, "ok": came_through, "seconds": seconds}
    )
    if not came_through:
        screen.line(
            f"The drill did not come through within {timeout_s:g} s: {incident_id or 'no incident'}, {state}."
        )
        screen.line("Look at the pipeline's alarms and dead-letter queues (docs/operate.md).")
        return Exit.NO
    screen.line(f"Alarm to {state} in {seconds} s, incident {incident_id}.")
    if state == "AWAITING_APPROVAL":
        screen.line("Each approver has a mail now. Answer it, or here: nothing can be replaced by a drill.")
    return Exit.DONE


def clear(screen: Screen, folder: Path | None, subject: str | None, *, everything: bool, reason: str) -> Exit:
    """List the record's entries, or take some out.

    Raises:
        CliError: no folder, no reason, nothing of that name, damaged, not writable.
    """
    if folder is None:
        raise CannotAskError("The job's shared folder is not named.", "Give --shared-dir, or SDC_SHARED_DIR.")
    found = clear_.entries(folder)
    if subject is None and not everything:
        screen.document([to_plain(e) for e in found])
        if not found:
            screen.line(f"{folder}: nobody is quarantined by this job's own record.")
        else:
            screen.table(
                ("SINCE", "INSTANCE", "GPU"),
                [(e.time[:19], e.instance_id or "whole job", e.gpu_uuid or "-") for e in found],
            )
        return Exit.DONE
    if not reason.strip():
        raise _usage("Clearing needs a reason; it is kept beside the record.", 'Give --reason "..."')
    chosen = clear_.choose(found, subject, everything=everything)
    clear_.clear(folder, chosen, reason)
    screen.document({"cleared": [to_plain(e) for e in chosen], "left": len(found) - len(chosen)})
    screen.line(f"{len(chosen)} of {len(found)} entries taken out of {folder / 'quarantine.json'}.")
    screen.line("What the pipeline's quarantine table holds stays held until its incident is decided.")
    return Exit.DONE


def acknowledge(screen: Screen, folder: Path | None, reason: str) -> Exit:
    """A person has looked at a step that fails everywhere: the alarms so far stop no further start.

    Raises:
        CliError: no folder, no reason, not writable.
    """
    if folder is None or not folder.is_dir():
        raise CannotAskError("The job's shared folder is not named.", "Give --shared-dir, or SDC_SHARED_DIR.")
    if not reason.strip():
        raise _usage("It needs a reason; it is kept beside the record.", 'Give --reason "..."')
    try:
        count = restarts.acknowledge(folder, reason)
    except OSError as e:
        raise CannotAskError(f"{folder} cannot be written: {e}.", "Run it where the job can write.") from e
    screen.document({"acknowledged": count, "reason": reason})
    screen.line(f"{count} alarms so far stop no further start; {restarts.ACKNOWLEDGED_FILE} says why.")
    return Exit.DONE


class _UsageError(CliError):
    code = Exit.USAGE


def _usage(message: str, remedy: str) -> CliError:
    return _UsageError(message, remedy)
