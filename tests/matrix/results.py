"""Raw results on disk: one folder per configuration, one file per rank, so that an interrupted run keeps what
it has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(out: Path, label: str, rank: int, found: dict[str, Any]) -> None:
    """Leave what one rank found in one configuration; whole or not at all."""
    file = _file(out, label, rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".part")
    draft.write_text(json.dumps(found))
    draft.replace(file)


def read(out: Path, label: str, ranks: int) -> list[dict[str, Any]] | None:
    """What every rank found; None when one of them has not come to its end."""
    files = [_file(out, label, rank) for rank in range(ranks)]
    return [json.loads(f.read_text()) for f in files] if all(f.exists() for f in files) else None


def _file(out: Path, label: str, rank: int) -> Path:
    return out / label.replace(" ", "-") / f"{rank}.json"
