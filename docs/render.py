"""Writes what the README takes from the code: `python -m docs.render`, after a change of table or mail.

In: the decision table, and the mail of a sample question. Out: README.md between its markers; a test fails
when it is stale. With `--picture`: the picture of the page that `make test-browser` took, into docs/images.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from lambdas.domain import mails
from lambdas.domain.decision_table import TABLE
from tests.unit.lambdas.questions import approval_of, incident_of

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TAKEN, PICTURE = ROOT / "out" / "browser" / "readme.png", ROOT / "docs" / "images" / "review.png"
URL = "https://abcde12345.execute-api.us-east-1.amazonaws.com"


def decision_table() -> str:
    """The table as Markdown, one line per row."""
    lines = ["| row | finding | meaning | contain | confirm by | then |", "|---|---|---|---|---|---|"]
    for row in TABLE:
        confirm = ", ".join(c.value for c in row.confirm) or "-"
        cells = (row.id, row.finding, row.meaning, row.contain.value, confirm, row.then.value)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def mail() -> str:
    """The mail that asks for a replacement by row C1; its link leads nowhere."""
    incident = incident_of("C1")
    way = mails.link_way(f"{URL}/review/{'x' * 43}")
    subject, body = mails.approval_mail(incident, approval_of(incident), way, URL)
    return f"```\nSubject: {subject}\n\n{body}```\n"


BLOCKS: dict[str, Callable[[], str]] = {"decision table": decision_table, "mail": mail}


def rendered(text: str) -> str:
    """`text` with each block current between its markers.

    Raises:
        ValueError: a block's markers are not there exactly once.
    """
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"README.md: {begin.strip()} ... {end} must stand there once")
        before, rest = text.split(begin)
        text = before + begin + block() + end + rest.split(end)[1]
    return text


def main(arguments: list[str]) -> int:
    README.write_text(rendered(README.read_text()))
    if "--picture" in arguments:
        if not TAKEN.exists():
            print(f"no {TAKEN.relative_to(ROOT)}: run make test-browser first", file=sys.stderr)  # noqa: T201
            return 1
        PICTURE.parent.mkdir(exist_ok=True)
        shutil.copyfile(TAKEN, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
