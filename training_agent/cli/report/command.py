"""The order of `sdc report`: read the run, ask the pipeline, write the page.

In: an incident's id, a run's folder, or both. Out: an HTML file, or one JSON document. What cannot be asked
is said on the page; only what the caller named by himself is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...contract import delivery_key, to_plain
from ..failures import CannotAskError, CliError, Exit, NotFoundError
from ..incident_id import checked
from ..pipeline import Pipeline
from ..screen import Screen
from . import claims, page
from .incidents import Record, record
from .run import Run, read


def report(
    screen: Screen, pipeline: Pipeline, incident_id: str | None, folder: Path | None, out: Path | None
) -> Exit:
    """Write one report.

    Raises:
        NotFoundError: there is no such incident, or nothing of a run in the folder.
        CannotAskError: the incident could not be read, or the file not be written.
    """
    if incident_id is None and folder is None:
        raise NotFoundError(
            "Neither an incident nor a run is named.",
            "Give INCIDENT, or --run FOLDER, or set SDC_SHARED_DIR.",
        )
    if incident_id is not None:
        checked(incident_id)
    now = datetime.now(timezone.utc)
    run, missing = (read(folder) if folder is not None else None), ""
    with screen.progress("reading"):
        if incident_id is not None:
            records: tuple[Record, ...] = (_record(pipeline, incident_id),)
        else:
            assert run is not None
            records, missing = _of_run(pipeline, run)
    content = {"made_at": now.isoformat(), "run": _plain_run(run), "missing": missing,
               "incidents": [_plain(r, now) for r in records]}  # fmt: skip
    screen.document(content)
    if out is None and screen.as_json:
        return Exit.DONE
    target = out or Path(f"sdc-report-{incident_id or _name(run)}.html")
    try:
        target.write_text(page.render(run, records, missing, now), encoding="utf-8")
    except OSError as e:
        raise CannotAskError(f"{target} cannot be written: {e}.", "Give --out FILE.") from e
    screen.line(claims.headline(run, records))
    screen.line(f"Written: {target}")
    return Exit.DONE


def _record(pipeline: Pipeline, incident_id: str) -> Record:
    """One incident with its story.

    Raises:
        NotFoundError: it is not in the table.
    """
    found = record(pipeline.rows(incident_id))
    if found is None:
        raise NotFoundError(
            f"There is no incident {incident_id}.", "`sdc incidents` lists the open ones; check --stack."
        )
    try:
        told = pipeline.told(incident_id)
    except CliError:
        return found  # its audit trail stands in the table all the same
    return replace(found, story=told.chapters, execution=told.console)


def _of_run(pipeline: Pipeline, run: Run) -> tuple[tuple[Record, ...], str]:
    """The incidents that a run's alarms opened, and what could not be asked about them."""
    keys = tuple(delivery_key(a) for a in run.alarms)
    if not keys and not run.job_uid:
        return (), ""
    try:
        ids = pipeline.incidents_of(run.job_uid, keys)
        return tuple(_record(pipeline, i) for i in ids), ""
    except CliError as e:
        if not run.alarms:
            return (), ""
        return (), f"What the pipeline did about these alarms is not in this report: {e} {e.remedy}"


def _name(run: Run | None) -> str:
    """Part of a file's name: the job's, without what a shell or a file system minds."""
    name = (run.job or Path(run.folder).resolve().name) if run is not None else ""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "run"


def _plain_run(run: Run | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {**asdict(replace(run, alarms=())), "alarms": [to_plain(a) for a in run.alarms]}


def _plain(r: Record, now: datetime) -> dict[str, Any]:
    spans = [
        {"name": s.name, "seconds": s.seconds, "said": s.said, "begin": s.begin.isoformat()} for s in r.spans
    ]
    story = [
        {"step": c.step, "seconds": round(c.seconds(now), 3), "visits": c.visits, "text": c.text}
        for c in r.story
    ]
    lines: Sequence[Any] = r.trail
    entries = [{"at": e.at.isoformat(), "what": e.what, "result": e.result} for e in lines]
    simple = asdict(replace(r, alarm=None, trail=(), spans=(), story=()))
    return {
        **simple,
        "opened_at": r.opened_at.isoformat(),
        "closed_at": r.closed_at.isoformat() if r.closed_at else None,
        "alarm": to_plain(r.alarm) if r.alarm else None,
        "durations": spans,
        "decisions": [e for e, kept in zip(entries, r.trail, strict=True) if kept in r.decisions],
        "trail": entries,
        "story": story,
    }
