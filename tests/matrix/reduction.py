"""Counts what the checksum of the reduction sees: `python -m tests.matrix.reduction`. Three ranks, gloo.

Goes out: false alarms in healthy steps, and by the size of one wrong element how many were seen; Markdown for
`docs/detection.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.matrix.launch import launch
from tests.matrix.markdown import replace_section
from tests.matrix.reduction_job import KINDS
from training_agent._reduction import CALIBRATION

RANKS, QUIET, TRIALS = 3, 1500, 20


def count(
    quiet: int, trials: int, *kinds: str, measured: int = CALIBRATION, timeout: float = 7200
) -> list[dict[str, Any]]:
    """By rank, what each kind of job counted."""
    with tempfile.TemporaryDirectory() as folder:
        given = (str(quiet), str(trials), str(measured), *kinds)
        launch("tests.matrix.reduction_job", RANKS, Path(folder), *given, timeout=timeout, gpus=1)
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]


def table(quiet: int, trials: int, found: dict[str, Any]) -> str:
    """Markdown of one rank's counts: all ranks decide alike."""
    lines = [
        "| gradients | healthy steps | alarms | seen, by the wrong element's size over its gradient's norm |",
        "|---|---|---|---|",
    ]
    steps = alarms = 0
    for kind, one in found.items():
        if one["off"]:
            lines.append(f"| {kind} | {quiet} | {one['alarms']} | off: {one['off']} |")
            continue
        seen = ", ".join(f"{size}: {n} of {trials}" for size, n in one["seen"].items())
        lines.append(f"| {kind} | {quiet} | {one['alarms']} | {seen} (limit {one['limit']:.3g} roundings) |")
        steps, alarms = steps + quiet, alarms + one["alarms"]
    bound = f"at most {3 / steps:.1e} per step at 95 %" if steps and not alarms else "no bound"
    lines.append(f"| all | {steps} | {alarms}: {bound} | |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quiet", type=int, default=QUIET, help="healthy steps of each kind, measuring aside"
    )
    parser.add_argument("--trials", type=int, default=TRIALS, help="wrong elements of each size")
    parser.add_argument("--write", action="store_true", help="into docs/detection.md")
    given = parser.parse_args()
    text = table(given.quiet, given.trials, count(given.quiet, given.trials, *KINDS)[0])
    if given.write:
        replace_section("reduction", text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
