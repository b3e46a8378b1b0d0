"""What people and programs see: one JSON document with `--json`, else text that fits the terminal.

In: plain data. Out: standard output; errors and live progress on standard error. NO_COLOR and pipes are
respected (rich); no line is longer than the terminal, 80 columns where there is none.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .failures import CliError

WIDEST = 110


class Screen:
    """Where one command writes."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._out, self._err = _console(sys.stdout), _console(sys.stderr)

    @property
    def width(self) -> int:
        """Columns that a line may have."""
        return self._out.width

    def document(self, content: Any) -> None:
        """The one JSON document of `--json`; nothing without it."""
        if self.as_json:
            sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")

    def line(self, text: str = "", *, style: str = "", indent: int = 0, hanging: int | None = None) -> None:
        """A sentence, wrapped at words; nothing with `--json`."""
        if self.as_json:
            return
        for part in wrapped(text, self.width, indent, indent if hanging is None else hanging):
            self._out.print(Text(part, style=style), no_wrap=True, overflow="ellipsis", crop=True)

    def verbatim(self, text: str) -> None:
        """One line of a command, cut and not wrapped where it is too long; nothing with `--json`."""
        if not self.as_json:
            self._out.print(Text(printable(text)), no_wrap=True, overflow="ellipsis", crop=True)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Columns; the last one wraps at words when the terminal is narrow. Nothing with `--json`."""
        if self.as_json:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        cells = [[printable(cell) for cell in row] for row in rows]
        for n, heading in enumerate(headings):
            last = n == len(headings) - 1
            widest = max(len(row[n]) for row in [list(headings), *cells])
            least = None if last else widest
            table.add_column(heading, no_wrap=not last, overflow="fold", min_width=least)
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        self._out.print(table)

    def error(self, error: CliError) -> None:
        """What happened, and what to do next, on standard error."""
        if self.as_json:
            more = {"details": list(error.details)} if error.details else {}
            told = {"error": str(error), "remedy": error.remedy, **more, "exit_code": int(error.code)}
            self.document(told)
            return
        lines = [(f"sdc: {error}", "bold red"), *((d, "") for d in error.details), (error.remedy, "")]
        for text, style in lines:
            for part in wrapped(text, self._err.width, 0, 5):
                self._err.print(Text(part, style=style), no_wrap=True, overflow="ellipsis", crop=True)

    @contextmanager
    def progress(self, what: str, *, live_only: bool = False) -> Iterator[Progress]:
        """Live progress on a terminal; one line per change where there is none, unless `live_only`."""
        if self._err.is_terminal and not self.as_json:
            with self._err.status(Text(what)) as status:
                yield Progress(lambda text: status.update(self._short(text)))
            return
        said: list[str] = []

        def say(text: str) -> None:
            if text not in said and not self.as_json and not live_only:
                said.append(text)
                self._err.print(Text(printable(text)), no_wrap=True, overflow="ellipsis", crop=True)

        yield Progress(say)

    def _short(self, text: str) -> Text:
        short = Text(printable(text))
        short.truncate(max(20, self._err.width - 2), overflow="ellipsis")  # beside the spinner
        return short


class Progress:
    """Says what is being waited for."""

    def __init__(self, say: Any) -> None:
        self.say = say


def wrapped(text: str, width: int, indent: int, hanging: int) -> list[str]:
    """Lines of at most `width` columns; a word that is longer is cut, since the JSON has it whole."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
    ) or [""]


def printable(text: str) -> str:
    """Without what moves a cursor, fills a clipboard or hides what stands beside it: names of jobs, pods and
    nodes are whatever an alarm said."""
    return "".join(c if c.isprintable() else " " for c in text)


def duration(seconds: float) -> str:
    """`0.7 s`, `4 min 10 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def _console(stream: Any) -> Console:
    console = Console(file=stream, highlight=False)
    console.width = min(console.width, WIDEST)
    return console
