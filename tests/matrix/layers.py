"""Counts what layer audits see of one-off faults on ordinary steps: `python -m tests.matrix.layers`.

Three ranks, gloo, a layer audit at every step, one finite fault in each step. Goes out: how many were caught,
by how they were drawn and by place, against one in so many blocks; Markdown for `docs/detection.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.matrix.launch import launch
from tests.matrix.layers_job import BY_SHARE, HEALTHY, OUTSIDE, PLACES, UNIFORM
from tests.matrix.markdown import replace_section

RANKS, FAULTS = 3, 2100
DRAWS = (UNIFORM, BY_SHARE, OUTSIDE)


@dataclass(frozen=True, slots=True)
class Seen:
    """One step's fault and what the guard made of it, over all ranks."""

    block: str
    place: str
    rank: int | None
    audited: str  # the block whose turn it was
    changed: bool  # some bit was changed
    named: tuple[int, ...]
    alarmed: bool

    @property
    def right(self) -> bool:
        """Nobody but the rank that was struck is named."""
        return self.named in ((), (self.rank,))


def merged(ranks: list[list[dict[str, Any]]]) -> list[Seen]:
    """The ranks' notes of one draw; what the guard says must be the same on all of them."""
    found = []
    for notes in zip(*ranks, strict=True):
        first = notes[0]
        assert all(n["named"] == first["named"] and n["alarms"] == first["alarms"] for n in notes)
        changed = any(n["changed"] for n in notes)
        named = tuple(first["named"])
        what = first["block"], first["place"], first["rank"], first["audited"]
        found.append(Seen(*what, changed, named, bool(first["alarms"])))
    return found


def count(faults: int, *draws: str, timeout: float = 7200) -> dict[str, list[Seen]]:
    """Launch the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        launch("tests.matrix.layers_job", RANKS, Path(folder), str(faults), *draws, timeout=timeout, gpus=1)
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {draw: merged([r[draw] for r in ranks]) for draw in ranks[0]}


def table(found: dict[str, list[Seen]]) -> str:
    """Markdown."""
    blocks = len({s.audited for seen in found.values() for s in seen})
    lines = [
        f"| drawn ({blocks} blocks) | faults | in the block whose turn it was | caught | share, at 95 % | "
        "wrong names |",
        "|---|---|---|---|---|---|",
    ]
    for draw, seen in found.items():
        faults = [s for s in seen if s.changed]
        lines.append(_row(draw, faults))
        if draw == UNIFORM:
            lines += [_row(f"of these: {p}", [s for s in faults if s.place == p]) for p in PLACES]
    healthy = [s for seen in found.values() for s in seen if s.block == HEALTHY]
    lines.append(_row("none: healthy steps", healthy))
    return "\n".join(lines) + "\n"


def _row(name: str, seen: list[Seen]) -> str:
    turn, caught = sum(s.block == s.audited for s in seen), sum(s.alarmed for s in seen)
    low, high = interval(caught, len(seen))
    wrong = sum(not s.right for s in seen)
    share = f"{100 * low:.1f} to {100 * high:.1f} %"
    return f"| {name} | {len(seen)} | {turn} | {caught} | {share} | {wrong} |"


def interval(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's interval at 95 %."""
    if not trials:
        return 0.0, 1.0
    z, p = 1.959964, hits / trials
    centre, width = p + z * z / (2 * trials), z * math.sqrt(p * (1 - p) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max(0.0, (centre - width) / scale), min(1.0, (centre + width) / scale)


def surprises(seen: Iterable[Seen]) -> list[Seen]:
    """Faults that were not caught in their block's turn, were caught out of it, or named somebody else."""
    return [s for s in seen if not s.right or s.alarmed != (s.changed and s.block == s.audited)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help="of each draw")
    parser.add_argument("--write", action="store_true", help="into docs/detection.md")
    given = parser.parse_args()
    found = count(given.faults, *DRAWS)
    text = table(found)
    if given.write:
        replace_section("layers", text)
    sys.stdout.write(text)
    odd = [s for seen in found.values() for s in surprises(seen)]
    sys.stdout.write(f"{len(odd)} surprises\n" + "".join(f"- {s}\n" for s in odd[:20]))
    return int(any(not s.right for s in odd))


if __name__ == "__main__":
    sys.exit(main())
