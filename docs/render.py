"""Writes what documents take from the code: `python -m docs.render`, when a table, mail or docstring changes.

In: the decision table, the mail of a sample question, how incidents end, the demo's variables, the modules'
docstrings. Out: README.md, docs/architecture.md and docs/operate.md between their markers; a test fails when
they are stale. With `--pictures`:
those that `make test-browser` took, into docs/images. With `--demo FILE`: the output of `make demo`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from docs import architecture
from examples.demo.settings import VARIABLES
from examples.demo.story import TIME
from lambdas.domain import mails
from lambdas.domain.decision_table import TABLE
from tests.unit.lambdas.questions import approval_of, incident_of

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
OPERATE = ROOT / "docs" / "operate.md"
TAKEN, IMAGES = ROOT / "out" / "browser", ROOT / "docs" / "images"
PICTURES = {"readme.png": "review.png", "report.png": "report.png"}  # as taken, as shown
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


def variables() -> str:
    """What the demo is asked for."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in VARIABLES]
    return "\n".join(lines) + "\n"


def ends() -> str:
    """The ends of an incident that leave something to a person, in the words of their mails."""
    lines = ["| ended as | what happened | what to do |", "|---|---|---|"]
    lines += [f"| `{state.value}` | {n.happened} | {n.todo} |" for state, n in mails.NOTICES.items()]
    return "\n".join(lines).replace("docs/operate.md, ", "") + "\n"


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    README: {"decision table": decision_table, "mail": mail, "variables": variables},
    ARCHITECTURE: {"modules": architecture.table},
    OPERATE: {"ends": ends},
}


def rendered(path: Path) -> str:
    """A document with each block current between its markers.

    Raises:
        ValueError: a block's markers are not there exactly once.
    """
    text = path.read_text()
    for name, block in BLOCKS[path].items():
        text = put(text, name, block(), path)
    return text


def told(log: str) -> list[str]:
    """The demo's output without its lines of live progress, which may go on in the lines below them."""
    lines, progress = [], False
    for line in map(str.rstrip, log.splitlines()):
        goes_on = line.startswith(" " * TIME)
        progress = progress if goes_on else line[TIME:].startswith("  ... ")
        if not progress:
            lines.append(line)
    return lines


def put(text: str, name: str, block: str, path: Path) -> str:
    """`text` with one block between its markers."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{path.name}: {begin.strip()} ... {end} must stand there once")
    before, rest = text.split(begin)
    return before + begin + block + end + rest.split(end)[1]


def main(arguments: list[str]) -> int:
    for path in BLOCKS:
        path.write_text(rendered(path))
    if "--demo" in arguments:
        log = Path(arguments[arguments.index("--demo") + 1]).read_text()
        block = "```\n" + "\n".join(told(log)).strip("\n") + "\n```\n"
        README.write_text(put(README.read_text(), "demo", block, README))
    if "--pictures" in arguments:
        IMAGES.mkdir(exist_ok=True)
        for taken, shown in PICTURES.items():
            if not (TAKEN / taken).exists():
                print(f"no {TAKEN / taken}: run make test-browser first", file=sys.stderr)  # noqa: T201
                return 1
            shutil.copyfile(TAKEN / taken, IMAGES / shown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
