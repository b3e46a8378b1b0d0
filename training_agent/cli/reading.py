"""Commands that change nothing: doctor, incidents, show, history. In: options. Out: text or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from . import doctor as doctor_
from .acting import options
from .aws import Aws
from .checks import Status
from .deployment import Deployment
from .failures import CliError, Exit, NotFoundError
from .pipeline import Pipeline, Told, subject_of
from .screen import Screen, duration
from .story import Chapter

POLL_S = 2.0
_STYLES = {Status.OK: "green", Status.FAILED: "bold red", Status.NOTE: "cyan", Status.SKIPPED: "dim"}
TERMINAL_HINT = ("OPENING", "LOCATED", "CONTAINED", "DECIDED", "CONFIRMING", "AWAITING_APPROVAL")
OPEN_STATES = frozenset({*TERMINAL_HINT, "REPLACING", "VERIFYING", "CLOSING", "DETAILS_MISSING"})


def doctor(
    screen: Screen,
    env: Mapping[str, str],
    aws: Aws,
    find: Callable[[], Deployment],
    only: Sequence[str],
    skip: Iterable[str],
) -> Exit:
    """Every check with its remedy; 1 when one failed."""
    unknown = sorted(set(only) - set(doctor_.PARTS))
    if unknown:
        raise NotFoundError(f"There is no part {', '.join(unknown)}.", f"Parts: {', '.join(doctor_.PARTS)}.")
    subject = doctor_.Subject(env, aws, find)
    checks = []
    with screen.progress("looking", live_only=True) as progress:
        for check in doctor_.examine(subject, only or doctor_.PARTS, skip, progress.say):
            checks.append(check)
    for check in checks:
        screen.line(
            f"{check.status.value:<8} {check.name:<17} {check.found}", style=_STYLES[check.status], hanging=27
        )
        if check.remedy:
            screen.line(check.remedy, indent=27)
    failed = sum(c.status is Status.FAILED for c in checks)
    screen.line()
    screen.line(
        f"{failed} of {len(checks)} checks failed." if failed else f"All {len(checks)} checks are in order."
    )
    screen.document({"ready": not failed, "checks": [asdict(c) for c in checks]})
    return Exit.NO if failed else Exit.DONE


def incidents(screen: Screen, pipeline: Pipeline) -> Exit:
    """A table of the open ones."""
    found = pipeline.incidents()
    screen.document(found)
    if not found:
        screen.line("No incident is open.")
        return Exit.DONE
    rows = [
        (
            i["incident_id"],
            _age(i.get("opened_at")),
            i["state"],
            i.get("decision_row") or "-",
            i.get("instance_id") or "whole job",
            ("drill " if i.get("synthetic") else "") + str(i.get("job")),
        )
        for i in found
    ]
    screen.table(("INCIDENT", "AGE", "STATE", "ROW", "INSTANCE", "JOB"), rows)
    return Exit.DONE


def show(screen: Screen, pipeline: Pipeline, incident_id: str, *, follow: bool) -> Exit:
    """One incident, whole."""
    found = pipeline.incident(incident_id)
    if follow:
        found = _until_ended(screen, pipeline, found)
    try:
        told, missing = pipeline.told(incident_id), None
    except CliError as e:
        told, missing = Told(), e
    now = datetime.now(timezone.utc)
    story = told.chapters
    screen.document({**found, "execution": told.console, "story": [_plain(c, now) for c in story]})
    _headline(screen, found["incident"])
    _question(screen, found)
    screen.line()
    for line in chapters(story, now):
        screen.line(line, hanging=44)
    if told.console:  # a link where the terminal knows links; its address is in the JSON
        screen.line(f"Execution {told.name} in the AWS console", style=f"link {told.console}")
    if missing is not None:
        screen.line(f"Its story cannot be told: {missing} {missing.remedy}")
    if job := (found.get("approval") or {}).get("replay_job"):
        screen.line()
        screen.line("The alarm's micro-batch again, on the node itself (--json has these lines uncut):")
        for line in job.splitlines():
            screen.verbatim(line)
    return Exit.DONE


def history(screen: Screen, pipeline: Pipeline, name: str) -> Exit:
    """A table of all incidents of a node or a GPU."""
    found = pipeline.history(subject_of(name))
    screen.document(found)
    if not found:
        screen.line(f"No incident has named {name}.")
        return Exit.DONE
    screen.table(("AT", "INCIDENT", "ROW"), [(h["at"], h["incident_id"], h["what"]) for h in found])
    return Exit.DONE


def chapters(story: Sequence[Chapter], now: datetime) -> list[str]:
    """Since the start, the step, how long it took, what came out: one line per chapter."""
    lines = []
    for c in story:
        since = (c.began - story[0].began).total_seconds()
        text = c.text if c.ended else f"so far; {c.text or 'under way'}"
        times = f" ({c.visits} looks)" if c.visits > 1 else ""
        took = duration(c.seconds(now))
        lines.append(f"{duration(since):>11}  {c.step:<17} {took:>11}  {text}{times}")
    return lines


def _headline(screen: Screen, incident: Mapping[str, Any]) -> None:
    screen.line(f"Incident {incident['incident_id']}: {incident['state']}", style="bold")
    drill = " (a fire drill: nothing is touched)" if incident.get("synthetic") else ""
    facts = (
        ("Job", f"{incident.get('job')}{drill}"),
        ("Node", incident.get("node") or "nobody is named: the whole job"),
        ("Opened", f"{incident.get('opened_at')}, {_age(incident.get('opened_at'))} ago"),
        ("Row", f"{incident.get('decision_row') or 'not decided yet'}  {incident.get('reason') or ''}"),
    )
    for label, text in facts:
        screen.line(f"{label:<8} {text}", hanging=9)


def _question(screen: Screen, found: Mapping[str, Any]) -> None:
    asked = found.get("approval")
    if not asked:
        return
    said = f", answered {asked['answer']} by {asked['decided_by']}" if asked.get("answer") else ""
    screen.line(
        f"{'Asked':<8} {asked['action']}: {asked['state']}{said}, until {asked['expires_at']}", hanging=9
    )
    for label, text in asked.get("facts", {}).items():
        screen.line(f"{label}: {text}", indent=9, hanging=11)
    for warning in asked.get("warnings", ()):
        screen.line(f"Warning: {warning}", indent=9, hanging=11, style="bold red")
    if asked["state"] == "PENDING":
        incident = found["incident"]
        for command in ("approve", "reject"):
            screen.line(f"sdc {command} {incident['incident_id']} \\", indent=9)
            for option in options(asked):
                screen.line(f"{option} \\", indent=11)
            screen.line('--reason "..."', indent=11)


def _until_ended(screen: Screen, pipeline: Pipeline, found: dict[str, Any]) -> dict[str, Any]:
    with screen.progress("following") as progress:
        while (state := found["incident"]["state"]) in OPEN_STATES:
            progress.say(f"{state}: {found['incident'].get('reason') or 'under way'}")
            time.sleep(POLL_S)
            found = pipeline.incident(found["incident"]["incident_id"])
    return found


def _plain(c: Chapter, now: datetime) -> dict[str, Any]:
    return {
        "step": c.step,
        "began": c.began.isoformat(),
        "ended": c.ended.isoformat() if c.ended else None,
        "seconds": round(c.seconds(now), 3),
        "visits": c.visits,
        "text": c.text,
    }


def _age(since: Any) -> str:
    try:
        began = datetime.fromisoformat(str(since).replace("Z", "+00:00"))
    except ValueError:
        return "?"
    return duration(max(0.0, (datetime.now(timezone.utc) - began).total_seconds()))
