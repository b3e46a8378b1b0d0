"""The comparison table: every failure of the published design, measured beside the agent."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.matrix import rows
from tests.matrix.launch import launch
from tests.published import simulation
from tests.published import table as published
from tests.published.trials import CRASHES, TRIALS
from tests.published.worker import LAYOUT

RANKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the comparison."""

    what: str
    published: str
    ours: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What one launch found."""

    table: dict[str, list[str]]  # published row: what is not as published
    trials: dict[str, tuple[str, str]]  # trial: (published, ours)


def measure(part: str = "all", timeout: float = 1500) -> Measured:
    """Launch six ranks, and once more for the trial that crashes under the published design.

    Raises:
        RuntimeError: a rank died, or ranks disagree about what happened.
    """
    ranks = _launched(part, timeout)
    if f"{CRASHES}|ours" in ranks[0]:
        crash = _crash(_launched("crash", timeout))
        for rank in ranks:
            rank[f"{CRASHES}|published"] = crash
    scenarios = rows.load()
    table = {}
    for case in published.cases(scenarios, LAYOUT):
        if case.key in ranks[0]:
            table[case.row["name"]] = published.problems(case, scenarios, [r[case.key] for r in ranks])
    return Measured(table, {name: _agreed(name, ranks) for name in TRIALS if f"{name}|ours" in ranks[0]})


def _launched(part: str, timeout: float) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        launch("tests.published.worker", RANKS, Path(folder), part, timeout=timeout, show=True)
        return [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(RANKS)]


def _crash(said: list[str]) -> str:
    """What the ranks that DDP stopped say; the others only lose their peers."""
    first = [f"{text} (rank {rank})" for rank, text in enumerate(said) if "DDP reducer" in text]
    return first[0] if first else "; ".join(sorted(set(said)))


def _agreed(name: str, ranks: list[dict[str, Any]]) -> tuple[str, str]:
    answers = []
    for design in ("published", "ours"):
        said = sorted({str(rank[f"{name}|{design}"]) for rank in ranks})
        answers.append(said[0] if len(said) == 1 else "ranks end differently: " + "; ".join(said))
    return answers[0], answers[1]


def lines(found: Measured, trials: int = simulation.TRIALS) -> list[Line]:
    """All lines, the pure ones included; `trials` lane faults of each width."""
    met = sum(not wrong for wrong in found.table.values())
    out = [
        Line(
            "the published table (rows that the design has)", f"{met} of {len(found.table)} met", "see above"
        )
    ]
    for ranks in (6, 8, 12):
        wrong, ours, all_ = simulation.wrong_names(ranks)
        what = f"two bad GPUs with identical wrong bits, {ranks} ranks: positions that name a healthy GPU"
        out.append(Line(what, f"{wrong} of {all_}", f"{ours} of {all_}"))
    for lanes in simulation.LANES:
        missed, ours = simulation.missed_lanes(lanes, trials)
        what = f"one bit toggled in {lanes} adjacent elements: missed by the digest"
        out.append(Line(what, f"{missed} of {trials}", f"{ours} of {trials}"))
    return out + [Line(name, *answers) for name, answers in found.trials.items()]


def markdown(found: Measured) -> str:
    """The table of `docs/detection.md`."""
    text = ["| what | published design | ours |", "|---|---|---|"]
    text += [f"| {line.what} | {line.published} | {line.ours} |" for line in lines(found)]
    return "\n".join(text) + "\n"
