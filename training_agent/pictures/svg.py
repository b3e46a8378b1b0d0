"""SVG elements as escaped text, and the colours, whose contrast a test computes.

In: numbers and untrusted words. Out: `Markup` that a template may show as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup, escape

PAPER, INK, FAINT = "#ffffff", "#1a1a1a", "#6b6b6b"
BAD, GOOD, DOUBT = "#b00020", "#1b6e3c", "#8a5a00"
ASIDE = 5  # an arrow's distance from the line between the centres
SHADE = "#fff1d6"  # behind the suspect window


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing and its equivalent for those who read or listen."""

    svg: Markup
    text: str


def tag(name: str, content: Markup | str = "", /, **attributes: object) -> Markup:
    """One element; `_` in a name is `-`, text and values are escaped, numbers are short."""
    given = Markup("").join(
        Markup(' {}="{}"').format(Markup(key.rstrip("_").replace("_", "-")), _short(value))  # noqa: S704
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), given, escape(content))  # noqa: S704


def drawing(name: str, title: str, text: str, width: int, height: int, *parts: Markup) -> Picture:
    """The picture as a whole: labelled by title and description, as wide as its column."""
    body = Markup("").join(
        (tag("title", title, id=f"{name}-title"), tag("desc", text, id=f"{name}-desc"), *parts)
    )
    return Picture(
        tag(
            "svg",
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            width="100%",
            role="img",
            aria_labelledby=f"{name}-title {name}-desc",
            font_family="system-ui, sans-serif",
            font_size=12,
        ),
        text,
    )


def label(x: float, y: float, text: str, colour: str = INK, anchor: str = "middle") -> Markup:
    return tag("text", text, x=x, y=y, fill=colour, text_anchor=anchor, aria_hidden="true")


def arrow(
    start: tuple[float, float], end: tuple[float, float], colour: str, gap: float, dashes: str
) -> Markup:
    """From one circle of radius `gap` to another, with a head; aside, so that there and back differ."""
    angle = math.atan2(end[1] - start[1], end[0] - start[0])
    cos, sin = math.cos(angle), math.sin(angle)
    tail = (start[0] + gap * cos - ASIDE * sin, start[1] + gap * sin + ASIDE * cos)
    tip = (end[0] - (gap + 6) * cos - ASIDE * sin, end[1] - (gap + 6) * sin + ASIDE * cos)
    neck = (tip[0] - 9 * cos, tip[1] - 9 * sin)
    head = [tip, (neck[0] - 5 * sin, neck[1] + 5 * cos), (neck[0] + 5 * sin, neck[1] - 5 * cos)]
    line = tag(
        "line", x1=tail[0], y1=tail[1], x2=neck[0], y2=neck[1],
        stroke=colour, stroke_width=2, stroke_dasharray=dashes,
    )  # fmt: skip
    points = " ".join(f"{_short(x)},{_short(y)}" for x, y in head)
    return line + tag("polygon", points=points, fill=colour)


def _short(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
