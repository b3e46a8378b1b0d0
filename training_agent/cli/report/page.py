"""The report as one HTML file: no script, nothing from outside, every field escaped.

In: `Run`, `Record`s. Out: HTML, whose sentences are computed here and laid out by `report.html`. Claims are
made of counts alone, and say beside each what it does not cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
from markupsafe import Markup

from ...contract import Alarm, delivery_key, occurrence_key
from ...pictures import TEMPLATES, Picture, ring
from ...pictures import timeline as alarm_timeline
from ..screen import duration
from . import alarms, claims, drawing
from .claims import count, end, when
from .incidents import Record
from .limits import RECORD, limits
from .run import Run

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Seen:
    """One alarm with its pictures."""

    alarm: Alarm
    named: tuple[str, ...]
    window: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """One incident as it is shown."""

    record: Record
    end: str
    hours: Picture | None
    seen: Seen | None


def render(run: Run | None, records: Sequence[Record], missing: str, made_at: datetime) -> str:
    """The page; `missing` says what could not be asked."""
    shown = run.figures if run else None
    pace = shown.overhead.step_seconds if shown is not None and shown.overhead is not None else None
    told = tuple(_told(r, pace) for r in records)
    known = {_identity(r.alarm) for r in records if r.alarm is not None}
    alone = [a for a in (run.alarms if run else ()) if _identity(a) not in known]
    return _environment.get_template("report.html").render(
        style=_STYLE,
        title=_title(run, records),
        headline=claims.headline(run, records),
        tiles=claims.tiles(run, records),
        claims=claims.what_follows(shown) if shown else (),
        audited=claims.audited(shown) if shown else "",
        run=run,
        picture=drawing.timeline(run) if run else None,
        told=told,
        alarms=tuple(_seen(a, f"alarm-{i}", pace) for i, a in enumerate(alone)),
        limits=limits(shown) if run else (RECORD,),
        missing=missing,
        made_at=made_at,
    )


def _told(record: Record, pace: float | None) -> Told:
    seen = _seen(record.alarm, f"incident-{record.id}", pace, record.ranks) if record.alarm else None
    return Told(record, end(record), drawing.hours(record), seen)


def _seen(alarm: Alarm, name: str, pace: float | None, ranks: tuple[int, ...] | None = None) -> Seen:
    """`pace`: seconds of a step without checks, where that is known."""
    drawn = (
        ring(alarm, alarm.named_ranks if ranks is None else ranks, f"{name}-ring"),
        alarm_timeline(alarm, f"{name}-timeline"),
    )
    named, window = alarms.named(alarm), alarms.window(alarm, pace)
    return Seen(alarm, named, window, tuple(p for p in drawn if p is not None))


def _title(run: Run | None, records: Sequence[Record]) -> str:
    if run is None:
        return f"Incident {records[0].id}" + " (fire drill)" * records[0].synthetic
    return f"Run {run.job or Path(run.folder).name}"


def _identity(alarm: Alarm) -> str:
    return occurrence_key(delivery_key(alarm), alarm.job.attempt)


_STYLE = Markup((HERE / "report.css").read_text(encoding="utf-8"))  # noqa: S704  # our own file
_environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([HERE, TEMPLATES]),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(count=count, when=when, took=duration, audited=claims.kernels)
