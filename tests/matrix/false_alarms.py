"""Counts false alarms: `python -m tests.matrix.false_alarms`. Three healthy ranks, five kinds of model.

Goes out: audited steps, alarms, and the bound that follows; Markdown for `docs/detection.md`.
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

RANKS = 3
STEPS = 2000  # of each kind: 10,000 audited steps in all


def count(steps: int, timeout: float, *kinds: str) -> dict[str, list[dict[str, Any]]]:
    """Per kind of model what each rank counted."""
    with tempfile.TemporaryDirectory() as folder:
        launch(
            "tests.matrix.quiet_job",
            RANKS,
            Path(folder),
            str(steps),
            *kinds,
            timeout=timeout,
            gpus=1,
            show=True,
        )
        ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {kind: [rank[kind] for rank in ranks] for kind in ranks[0]}


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown, with the rule of three: no event in n trials bounds the rate by 3/n at 95 %."""
    lines = [
        "| model | audited steps | skipped audits | weight checks | alarms |",
        "|---|---|---|---|---|",
    ]
    audits = alarms = 0
    for kind, ranks in found.items():
        first = ranks[0]
        alarm = int(any(rank["alarm"] for rank in ranks))
        audits, alarms = audits + first["audits_passed"], alarms + alarm
        lines.append(
            f"| {kind} | {first['audits_passed']} | {first['audits_skipped']} | "
            f"{first['weight_checks_passed']} | {alarm} |"
        )
    bound = f"at most {3 / audits:.1e} per audited step at 95 %" if audits and not alarms else "no bound"
    lines.append(f"| all | {audits} | | | {alarms}: {bound} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="audited steps of each kind")
    parser.add_argument("--write", action="store_true", help="into docs/detection.md")
    given = parser.parse_args()
    text = table(count(given.steps, timeout=7200))
    if given.write:
        replace_section("false alarms", text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
