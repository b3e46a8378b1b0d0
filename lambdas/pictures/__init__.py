"""Pictures of the review page: small pure functions, alarm in, inline SVG and the same in words out.

No script, no style attribute, no link to anything outside: the page's policy would block them. Colours are
attributes, so that the pictures also stand without the style sheet.
"""

from .ring import ring
from .sparklines import sparklines
from .svg import Picture
from .timeline import timeline

__all__ = ["Picture", "ring", "sparklines", "timeline"]
