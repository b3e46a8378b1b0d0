"""Pictures of a report: the run as a line of steps, an incident as a line of hours. Pure; inline SVG.

In: `Run` or `Record`. Out: a picture with the same in words, None when there is nothing to draw.
"""

from __future__ import annotations

from markupsafe import Markup

from ...pictures.svg import BAD, DOUBT, FAINT, GOOD, INK, PAPER, SHADE, Picture, drawing, label, tag
from ..screen import duration
from .incidents import Record
from .run import Run, Saved

WIDTH, LEFT, RIGHT = 420, 90, 404
LANES = ("alarms", "checkpoints")
TOP, LANE = 26, 38
BAR, GAP = 16, 10
ROOM = 76  # for the longest duration, right of its bar
SHOWN = 60  # checkpoints; more than that: the newest
COLOURS = {"complete": GOOD, "doubtful": DOUBT, "incomplete": FAINT}


def timeline(run: Run) -> Picture | None:
    """Checkpoints by state and alarms with their suspect windows, over the steps of the run."""
    saved = run.checkpoints[-SHOWN:]
    steps = [c.step for c in saved] + [s for a in run.alarms for s in (a.step, *a.suspect_window)]
    if not steps:
        return None
    first, last = min(steps), max(steps)

    def x(step: int) -> float:
        return LEFT + (RIGHT - LEFT) * (step - first) / max(1, last - first)

    height = TOP + LANE * (len(LANES) - 1) + 48
    windows = [
        tag("rect", x=x(a.suspect_window[0]), y=TOP - 16.0, height=LANE + 32.0,
            width=max(x(a.suspect_window[1]) - x(a.suspect_window[0]), 4.0),
            fill=SHADE, stroke=DOUBT, stroke_dasharray="4 3")
        for a in run.alarms
    ]  # fmt: skip
    rails = [
        part
        for i, name in enumerate(LANES)
        for part in (
            tag("line", x1=LEFT, x2=RIGHT, y1=_y(i), y2=_y(i), stroke=FAINT),
            label(LEFT - 14, _y(i) + 4, name, INK, "end"),
        )
    ]
    marks = [*(_alarm(x(a.step)) for a in run.alarms), *(_checkpoint(x(c.step), c) for c in saved)]
    axis = [
        label(x(first), height - 8, f"step {first:,}", INK, "start" if last > first else "middle"),
        *([label(x(last), height - 8, f"{last:,}", INK, "end")] if last > first else []),
    ]
    parts = (*windows, *rails, *marks, *axis)
    return drawing("run", "The run, step by step", _run_text(run, saved), WIDTH, height, *parts)


def hours(record: Record) -> Picture | None:
    """One bar for each thing that people wait for, on one scale from the alarm to the end."""
    spans = [s for s in record.spans if s.end is not None]
    if not spans:
        return None
    begin, end = min(s.begin for s in spans), max(s.end for s in spans if s.end is not None)
    total = max((end - begin).total_seconds(), 1e-3)
    rows = []
    for i, span in enumerate(spans):
        assert span.end is not None and span.seconds is not None
        y = 8 + (BAR + GAP) * i
        left = LEFT + (RIGHT - LEFT - ROOM) * (span.begin - begin).total_seconds() / total
        width = max((RIGHT - LEFT - ROOM) * span.seconds / total, 2.0)
        rows += [
            label(LEFT - 14, y + 12, span.name, INK, "end"),
            tag("rect", x=left, y=y, width=width, height=BAR, fill=DOUBT if span.name == "approve" else GOOD),
            label(left + width + 6, y + 12, duration(span.seconds), INK, "start"),
        ]
    said = " ".join(f"{s.name.capitalize()}: {duration(s.seconds or 0)}, {s.said}." for s in spans)
    height = 8 + (BAR + GAP) * len(spans)
    name = f"hours-{record.id}"
    return drawing(name, "How long it took", f"{said} {duration(total)} in all.", WIDTH, height, *rows)


def _y(lane: int) -> int:
    return TOP + LANE * lane


def _alarm(x: float) -> Markup:
    y = _y(0)
    points = f"{x:.1f},{y - 12} {x + 11:.1f},{y + 8} {x - 11:.1f},{y + 8}"
    return tag("polygon", points=points, fill=BAD) + label(x, y + 6, "!", PAPER)


def _checkpoint(x: float, saved: Saved) -> Markup:
    """Filled and ticked when nothing is against it, an empty frame otherwise: it shows without colours."""
    y, colour = _y(1), COLOURS[saved.state]
    usable = saved.state == "complete"
    box = tag("rect", x=x - 7, y=y - 7.0, width=14, height=14, fill=colour if usable else PAPER,
              stroke=colour, stroke_width=2)  # fmt: skip
    if not usable:
        return box + tag("line", x1=x - 5, y1=y + 5.0, x2=x + 5, y2=y - 5.0, stroke=colour, stroke_width=2)
    points = f"{x - 4:.1f},{y} {x - 1:.1f},{y + 4} {x + 5:.1f},{y - 4}"
    return box + tag("polyline", points=points, fill="none", stroke=PAPER, stroke_width=2)


def _run_text(run: Run, saved: tuple[Saved, ...]) -> str:
    by_state = {s: [c.step for c in saved if c.state == s] for s in COLOURS}
    said = [f"{len(n)} {s} checkpoint{'s' * (len(n) > 1)}: step {_few(n)}." for s, n in by_state.items() if n]
    said += [
        f"Alarm at step {a.step}, suspect window {a.suspect_window[0]} to {a.suspect_window[1]}."
        for a in run.alarms[:8]
    ]
    return " ".join(said) + ("" if run.alarms else " No alarm.")


def _few(steps: list[int]) -> str:
    shown = [f"{step:,}" for step in steps]
    if len(shown) <= 6:
        return ", ".join(shown)
    return f"{', '.join(shown[:3])} ... {', '.join(shown[-2:])}"
