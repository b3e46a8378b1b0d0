"""The time line in steps: what passed, the suspect window, the alarm, and which checkpoints may be used.

In: an alarm. Out: a picture. The pipeline cannot list checkpoints: what lies in the window is doubtful, and
the agent moved it aside; what it chose to resume from passed its checks; nothing is saved after the alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from training_agent.contract import Alarm

from .svg import BAD, DOUBT, FAINT, GOOD, SHADE, Picture, drawing, label, tag

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, LANE = 92, 340, 34, 34
LANES = ("audits", "weights", "checkpoints")


@dataclass(frozen=True, slots=True)
class Scale:
    """Steps to x; a line of one step stands in the middle."""

    first: int
    last: int

    def x(self, step: int) -> float:
        if self.last == self.first:
            return (LEFT + RIGHT) / 2
        inside = min(max(step, self.first), self.last)
        return LEFT + 12 + (RIGHT - LEFT - 24) * (inside - self.first) / (self.last - self.first)


def timeline(alarm: Alarm, name: str = "timeline") -> Picture:
    """Draw it."""
    passed = [alarm.last_audit_pass, alarm.last_weight_check_pass, _resume(alarm)]
    known = [s for s in (*passed, *alarm.suspect_window, alarm.step) if s is not None]
    scale = Scale(min(known), max(known))
    begin, end = (scale.x(s) for s in alarm.suspect_window)
    window = tag(
        "rect", x=min(begin, end), y=TOP - 14, width=max(abs(end - begin), 4.0), height=3 * LANE - 4,
        fill=SHADE, stroke=DOUBT, stroke_dasharray="4 3",
    )  # fmt: skip
    marks = [
        *(_passed(scale, lane, step) for lane, step in enumerate(passed) if step is not None),
        _blocked(scale.x(alarm.step)),
        _alarm(scale.x(alarm.step)),
    ]
    names = [label(LEFT - 8, _y(i) + 4, name, anchor="end") for i, name in enumerate(LANES)]
    rails = [
        tag("line", x1=LEFT, x2=RIGHT, y1=_y(i), y2=_y(i), stroke=FAINT, stroke_width=1)
        for i in range(len(LANES))
    ]
    parts = (window, *rails, *names, *marks, *_axis(scale, alarm))
    return drawing(name, "What passed, and since when", _text(alarm), WIDTH, HEIGHT, *parts)


def _resume(alarm: Alarm) -> int | None:
    return alarm.resume_from.step if alarm.resume_from else None


def _y(lane: int) -> int:
    return TOP + LANE * lane


def _passed(scale: Scale, lane: int, step: int) -> Markup:
    """A tick in a circle; a checkpoint is a square."""
    x, y = scale.x(step), _y(lane)
    shape = (
        tag("rect", x=x - 9, y=y - 9, width=18, height=18, fill=GOOD)
        if lane == LANES.index("checkpoints")
        else tag("circle", cx=x, cy=y, r=9, fill=GOOD)
    )
    points = f"{x - 4:.1f},{y:.1f} {x - 1:.1f},{y + 4:.1f} {x + 5:.1f},{y - 4:.1f}"
    return shape + tag("polyline", points=points, fill="none", stroke="#ffffff", stroke_width=2)


def _alarm(x: float) -> Markup:
    y = _y(0)
    points = f"{x:.1f},{y - 11:.1f} {x + 10:.1f},{y + 8:.1f} {x - 10:.1f},{y + 8:.1f}"
    return tag("polygon", points=points, fill=BAD) + label(x, y + 6, "!", "#ffffff")


def _blocked(x: float) -> Markup:
    """No save at the alarm's step: a cross in a square."""
    y = _y(2)
    frame = tag("rect", x=x - 9, y=y - 9, width=18, height=18, fill="#ffffff", stroke=BAD, stroke_width=2)
    lines = ((x - 5, y - 5, x + 5, y + 5), (x - 5, y + 5, x + 5, y - 5))
    return frame + Markup("").join(
        tag("line", x1=a, y1=b, x2=c, y2=d, stroke=BAD, stroke_width=2) for a, b, c, d in lines
    )


def _axis(scale: Scale, alarm: Alarm) -> list[Markup]:
    """Numbers of the last good and of the alarm's step, and what the shade means."""
    y = _y(2) + 34
    ends = [label(scale.x(alarm.step), y, f"{alarm.step}", BAD)]
    if scale.first != alarm.step:
        ends.append(label(scale.x(scale.first), y, f"step {scale.first}"))
    begin, end = alarm.suspect_window
    middle = (scale.x(begin) + scale.x(end)) / 2
    return [*ends, label(min(middle, RIGHT - 60), y + 20, f"suspect window {begin} to {end}", DOUBT)]


def _text(alarm: Alarm) -> str:
    begin, end = alarm.suspect_window
    point, audit, weights = alarm.resume_from, alarm.last_audit_pass, alarm.last_weight_check_pass
    return " ".join(
        (
            f"Last audit that passed: {'none' if audit is None else f'step {audit}'}.",
            f"Last weight check that passed: {'none' if weights is None else f'step {weights}'}.",
            f"Suspect window: steps {begin} to {end}; checkpoints saved in it are doubtful, moved aside.",
            f"Alarm at step {alarm.step}: nothing is saved from there on.",
            f"Checkpoint to resume from: step {point.step}, its checks passed."
            if point is not None
            else "No checkpoint from before the window is known.",
        )
    )
