"""One and two bad GPUs at random positions in real processes: whoever is named is bad, or nobody is.

The exhaustive form is a simulation (`tests/unit/agent/test_attribution_simulation.py`); this samples it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.matrix import results
from tests.matrix.launch import launch
from tests.matrix.rows import Case, Config

KINDS: dict[str, dict[str, Any]] = {
    "persistent": {},
    "transient": {"persistence": "once", "phases": "step"},
    "replayer": {"phases": "replays"},
}


def cases(table: dict[str, Any], layout: str, count: int) -> Iterator[Case]:
    """`count` random cases, the same on every rank."""
    draw = random.Random(1000 + count)
    for number in range(count):
        bad = sorted(draw.sample(range(table["layouts"][layout]["ranks"]), 1 + number % 2))
        identical = draw.random() < 0.5
        faults = [
            {
                "role": rank,
                "where": "forward-output",
                "shape": ["Element", 1000.0],
                "step": 31,
                "index": 0 if identical else i,
                **KINDS[draw.choice(list(KINDS))],
            }
            for i, rank in enumerate(bad)
        ]
        row = {
            "name": f"sample {number}",
            "start": 29,
            "steps": 31,
            "schedule": "audits at every step",
            "faults": faults,
            "expect": {"check": "replay", "step": 31},
            "off": [],
        }
        yield Case(row, Config(layout, draw.choice(["fp32", "bf16"]), "immediate", "rotate"), blinded=False)


def run(table: dict[str, Any], layout: str, count: int, folder: Path, timeout: float) -> list[str]:
    """Run them; what went wrong, one sentence each."""
    ranks = table["layouts"][layout]["ranks"]
    launch("tests.matrix.worker", ranks, folder, layout, str(count), timeout=timeout)
    written = results.read(folder, "sample", ranks)
    assert written is not None
    found = [rank["results"] for rank in written]
    wrong, alarms = [], 0
    for case in cases(table, layout, count):
        answers = [json.loads(f[case.key]["alarm"] or "null") for f in found]
        bad = {fault["role"] for fault in case.row["faults"]}
        named = {f["rank"] for a in answers if a for f in a["findings"] if f["rank"] is not None}
        alarms += answers[0] is not None
        if any(a != answers[0] for a in answers) or any(f[case.key]["error"] for f in found):
            wrong.append(f"{case.key}: ranks end differently")
        if not named <= bad:
            wrong.append(f"{case.key}: bad are {sorted(bad)}, named {sorted(named)}")
        if len(bad) == 1 and named != bad:
            wrong.append(f"{case.key}: bad is {sorted(bad)}, named {sorted(named)}")
    return wrong if alarms * 2 > count else [*wrong, f"only {alarms} of {count} alarmed"]
