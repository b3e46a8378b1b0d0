"""Pictures of page and report: small pure functions, alarm in, inline SVG and the same in words out.

No script, no style attribute, no link to anything outside: the page's policy would block them. Colours are
attributes, so that the pictures also stand without the style sheet. The Lambda bundle carries this package
beside the wire format; it needs markupsafe and nothing else. In `TEMPLATES`, for jinja2's loader, lie the
frame of both pages (page.html) and how pictures are laid out (figures.html).
"""

from pathlib import Path

from .ring import ring
from .svg import Picture
from .timeline import timeline

__all__ = ["TEMPLATES", "Picture", "ring", "timeline"]

TEMPLATES = Path(__file__).parent
