"""Writes what the README takes from the code: `python -m docs.render` after a change of the decision table.

In: `lambdas.domain.decision_table.TABLE`. Out: README.md between its markers. A test fails when it is stale.
"""

from __future__ import annotations

from pathlib import Path

from lambdas.domain.decision_table import TABLE

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- decision table -->\n", "<!-- /decision table -->"


def decision_table() -> str:
    """The table as Markdown, one line per row."""
    lines = ["| row | finding | meaning | contain | confirm by | then |", "|---|---|---|---|---|---|"]
    for row in TABLE:
        confirm = ", ".join(c.value for c in row.confirm) or "-"
        cells = (row.id, row.finding, row.meaning, row.contain.value, confirm, row.then.value)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def rendered(text: str) -> str:
    """`text` with the current table between the markers."""
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return before + BEGIN + decision_table() + END + after


if __name__ == "__main__":
    README.write_text(rendered(README.read_text()))
