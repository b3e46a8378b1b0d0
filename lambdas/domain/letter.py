"""The one template of all mails: plain text, 72 columns, in the order in which it is read at night.

In: a `Letter`, whose texts are one line each. Out: the mail's body. Links and commands stay whole on lines of
their own, so that they can be clicked and copied; everything else is wrapped.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from .approval import Fact

COLUMNS = 72
INDENT = "  "


@dataclass(frozen=True, slots=True)
class Letter:
    """Parts of a mail, all but the first optional; parts that are empty leave no trace."""

    opening: tuple[str, ...]  # paragraphs: the question or what happened, and until when
    warnings: tuple[str, ...] = ()
    way: tuple[str, ...] = ()  # a sentence, then lines that stay whole
    meaning: tuple[str, ...] = ()
    outcomes: tuple[Fact, ...] = ()  # what each answer leads to
    todo: tuple[str, ...] = ()  # what the reader should do now
    facts: tuple[Fact, ...] = ()
    commands: tuple[str, ...] = ()  # lines that stay whole
    console: str = ""  # address of the execution


def render(letter: Letter) -> str:
    """The mail's body."""
    parts = [
        *map(_wrapped, letter.opening),
        *(_wrapped(f"WARNING: {text}") for text in letter.warnings),
        "\n".join([_wrapped(letter.way[0]), *letter.way[1:]]) if letter.way else "",
        _titled("WHAT IT MEANS", "\n".join(map(_wrapped, letter.meaning))),
        _titled("WHAT WILL HAPPEN", _listing(letter.outcomes)),
        _titled("WHAT TO DO NOW", "\n".join(map(_wrapped, letter.todo))),
        _titled("FACTS", _listing(letter.facts)),
        _titled("COMMAND LINE", "\n".join(letter.commands)),
        _titled("THE STORY SO FAR, STEP BY STEP (AWS console)", letter.console),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(title: str, text: str) -> str:
    return f"{title}\n{text}" if text else ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS)


def _listing(facts: tuple[Fact, ...]) -> str:
    return "\n".join(
        textwrap.fill(f"{f.label}: {f.text}", COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT * 2)
        for f in facts
    )
