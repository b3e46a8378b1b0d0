"""The id of an incident, as people type it; looked at before anything is asked or computed."""

from __future__ import annotations

import re

from .failures import NotFoundError

_ID = re.compile(r"[0-9a-f]{16}")


def checked(text: str) -> str:
    """The id itself.

    Raises:
        NotFoundError: it is none, so no incident can have it.
    """
    if _ID.fullmatch(text) is None:
        raise NotFoundError(
            f"{text!r} is no incident id.",
            "It has 16 hexadecimal digits; the mail shows it, `sdc incidents` lists the open ones.",
        )
    return text
