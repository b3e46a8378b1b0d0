"""Telemetry of the accused GPUs as small lines, one a measure, the alarm in the middle of the half hour.

In: readings. Out: a picture, None when there is no data: nothing is drawn that could be taken for health.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from training_agent.pictures.svg import BAD, FAINT, INK, Picture, drawing, label, tag

from .domain.telemetry import Reading

WIDTH, ROW, TOP = 360, 40, 8
LEFT, RIGHT = 176, 300
MAX_POINTS = 64


def sparklines(readings: Sequence[Reading]) -> Picture | None:
    """Draw the measures that have data."""
    known = [r for r in readings if r.points]
    if not known:
        return None
    middle = (LEFT + RIGHT) / 2
    height = TOP + ROW * len(known) + 20
    alarm = tag("line", x1=middle, x2=middle, y1=TOP, y2=height - 20, stroke=BAD, stroke_dasharray="3 3")
    rows = [part for i, r in enumerate(known) for part in _row(TOP + ROW * i, r)]
    parts = (alarm, *rows, label(middle, height - 6, "alarm", BAD))
    return drawing("telemetry", "Telemetry around the alarm", _text(readings), WIDTH, height, *parts)


def _row(top: float, reading: Reading) -> tuple[Markup, ...]:
    """Name, line, highest value; a flat line lies at the bottom of its row."""
    points = reading.points[:MAX_POINTS]
    low, high = min(points), max(points)
    span, wide = (high / 2 - low / 2) or 1.0, max(len(points) - 1, 1)  # halves: no overflow
    bottom = top + ROW - 12
    marks = " ".join(
        f"{LEFT + (RIGHT - LEFT) * i / wide:.1f},{bottom - 20 * (p / 2 - low / 2) / span:.1f}"
        for i, p in enumerate(points)
    )
    return (
        tag("line", x1=LEFT, x2=RIGHT, y1=bottom, y2=bottom, stroke=FAINT),
        tag("polyline", points=marks, fill="none", stroke=INK, stroke_width=2),
        label(LEFT - 8, bottom, reading.name, anchor="end"),
        label(RIGHT + 8, bottom, f"{high:g}", anchor="start"),
    )


def _text(readings: Sequence[Reading]) -> str:
    said = [
        f"{r.name}: no data." if not r.points else f"{r.name}: from {min(r.points):g} to {max(r.points):g}."
        for r in readings
    ]
    return " ".join(said) + " Clean telemetry does not exonerate a node."
