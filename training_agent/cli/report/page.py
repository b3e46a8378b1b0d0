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
from . import claims, drawing
from .claims import count, end, percent, when
from .incidents import Record
from .run import Figures, Run

HERE = Path(__file__).parent
OTHER_KERNELS = (
    "Audits run deterministic kernels: a fault that only the kernels of other steps show is not seen."
)
LIMITS = (
    "A check that passed is a record of that step; it does not prove that a saved state is clean.",
    "A one-off finite fault on a step that was not audited is not seen by replays.",
    "A finite fault inside the all-reduce that is the same on all ranks is not seen.",
    OTHER_KERNELS,
    "Counts follow the state from checkpoint to checkpoint: steps after the last one are in none of them.",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One alarm with its pictures."""

    alarm: Alarm
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
    told = tuple(_told(r) for r in records)
    known = {_identity(r.alarm) for r in records if r.alarm is not None}
    alone = [a for a in (run.alarms if run else ()) if _identity(a) not in known]
    shown = run.figures if run else None
    return _environment.get_template("report.html").render(
        style=_STYLE,
        title=_title(run, records),
        headline=claims.headline(run, records),
        tiles=claims.tiles(run, records),
        claims=claims.what_follows(shown, len(run.alarms) if run else 0) if shown else (),
        audited=claims.audited(shown) if shown else "",
        overhead=shown.overhead if shown else None,
        run=run,
        picture=drawing.timeline(run) if run else None,
        told=told,
        alarms=tuple(_seen(a, f"alarm-{i}") for i, a in enumerate(alone)),
        limits=_limits(shown) if run else LIMITS[:1],
        missing=missing,
        made_at=made_at,
    )


def _limits(figures: Figures | None) -> tuple[str, ...]:
    forced = figures is not None and 0 < figures.audits == figures.audits_forced
    return tuple(text for text in LIMITS if not (forced and text == OTHER_KERNELS))


def _told(record: Record) -> Told:
    seen = _seen(record.alarm, f"incident-{record.id}", record.ranks) if record.alarm else None
    return Told(record, end(record), drawing.hours(record), seen)


def _seen(alarm: Alarm, name: str, ranks: tuple[int, ...] | None = None) -> Seen:
    drawn = (
        ring(alarm, alarm.named_ranks if ranks is None else ranks, f"{name}-ring"),
        alarm_timeline(alarm, f"{name}-timeline"),
    )
    return Seen(alarm, tuple(p for p in drawn if p is not None))


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
_environment.filters.update(count=count, when=when, took=duration, percent=percent, audited=claims.kernels)
