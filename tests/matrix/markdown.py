"""Sections of `docs/detection.md` that commands write, between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "detection.md"


def section(name: str) -> str:
    """What stands there now."""
    return DOCUMENT.read_text().split(f"<!-- {name} -->\n", 1)[1].split(f"<!-- /{name} -->", 1)[0]


def replace_section(name: str, text: str) -> None:
    """Put `text` there."""
    before, rest = DOCUMENT.read_text().split(f"<!-- {name} -->\n", 1)
    after = rest.split(f"<!-- /{name} -->", 1)[1]
    DOCUMENT.write_text(f"{before}<!-- {name} -->\n{text}<!-- /{name} -->{after}")
