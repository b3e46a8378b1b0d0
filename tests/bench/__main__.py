"""`python -m tests.bench`: what the checks cost, into out/bench.json and, with --write, docs/performance.md.

--quick takes a minute and proves that it runs; its figures prove nothing. Each group's result is kept in
out/bench as it ends, and --resume measures only those that are missing or void. Exit code 1 when an A/A row
was not quiet: that group is void.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from tests.bench import digests, figures, markdown, scale, startup
from tests.bench.figures import Round
from tests.bench.subjects import GROUPS
from tests.matrix.launch import launch

OUT = Path("out/bench.json")
CASES = Path("out/bench")


@dataclass(frozen=True, slots=True)
class Case:
    """One process group."""

    ranks: int
    tokens: int  # per rank and step
    seconds: float  # of measuring, at least one block
    group: str = "schedules"  # of subjects

    @property
    def key(self) -> str:
        """For the JSON."""
        return f"{self.ranks} ranks, {self.tokens} tokens"

    def kept_in(self, size: str) -> Path:
        """Its result, for --resume."""
        group = "" if self.group == "schedules" else f", {self.group}"
        return CASES / f"{size} {self.key}{group}.json"


FULL = (Case(2, 96, 120), Case(2, 1024, 180), Case(4, 96, 140), Case(4, 1024, 220))
OPTIONS = (Case(2, 96, 90, "options"), Case(2, 1024, 200, "options"))
QUICK, QUICK_OPTIONS = (Case(2, 96, 1),), (Case(2, 96, 1, "options"),)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest model, one process group")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--resume", action="store_true", help="keep the quiet groups of the run before")
    given = parser.parse_args()
    size = "TINY" if given.quick else "SMALL"
    if not given.resume:
        forget(size)
    # the short sections first: what breaks there costs no long run
    short = {
        "scale": scale.measure(512, 50) if given.quick else scale.measure(),
        "start": startup.measure(),
        "digest": digests.measure((4,), 2) if given.quick else digests.measure(),
    }
    found = measure(*((QUICK, QUICK_OPTIONS) if given.quick else (FULL, OPTIONS)), size)
    found = short | found | {"start": short["start"] | found["start"]}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    text = markdown.tables(found)
    sys.stdout.write(text)
    if given.write and not given.quick:
        markdown.write(text)
    return 1 if found["void"] else 0


def measure(cases: tuple[Case, ...], options: tuple[Case, ...], size: str) -> dict[str, Any]:
    """The step benchmark; top-level figures are those of the first case."""
    by_case = {case.key: kept(case, size) or _case(case, size) for case in cases}
    by_option = {case.key: kept(case, size) or _case(case, size) for case in options}
    first = by_case[cases[0].key]
    return {
        "machine": machine(),
        "parameters": first["parameters"],
        "void": any(c["void"] for c in (*by_case.values(), *by_option.values())),
        "a_a_pct": first["a_a_pct"],
        "overhead": first["overhead"],
        "operations": first["operations"],
        "start": {"attach_and_first_steps_s": first["start_s"]},
        "cases": by_case,
        "options": by_option,
    }


def forget(size: str) -> None:
    """Drop what earlier runs of this size measured; a quick one costs no long run its groups."""
    for path in CASES.glob(f"{size} *.json"):
        path.unlink()


def kept(case: Case, size: str) -> dict[str, Any] | None:
    """What the run before measured, unless it was void, or of other subjects than today's."""
    path = case.kept_in(size)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"void": True}
    measured = tuple(found.get("operations", ()))
    return None if found["void"] or measured != GROUPS[case.group] else found


def _case(case: Case, size: str) -> dict[str, Any]:
    sys.stderr.write(f"bench: {case.group}, {case.key}, about {case.seconds:.0f} s\n")
    with tempfile.TemporaryDirectory() as folder:
        args = (str(case.tokens), str(case.seconds), size, case.group)
        launch("tests.bench.worker", case.ranks, Path(folder), *args, timeout=600, gpus=1, fresh=True)
        raw = json.loads((Path(folder) / "rounds.json").read_text())
    rounds = [Round(r["kind"], r["seconds"]) for r in raw["rounds"]]
    a_a = figures.quiet(rounds)
    found = {
        "a_a_pct": round(a_a, 2),
        "void": abs(a_a) > figures.QUIET_PCT,
        "rounds": len(rounds),
        "plain_step_s": round(figures.plain_step(rounds), 4),
        **_compared(case, rounds, raw["operations"]),
        "steps_pct": figures.by_kind(rounds),
        "operations": raw["operations"],
        "start_s": {name: round(s, 3) for name, s in raw["start_s"].items()},
        "parameters": raw["parameters"],
    }
    CASES.mkdir(parents=True, exist_ok=True)
    case.kept_in(size).write_text(json.dumps(found, indent=1) + "\n")
    return found


def _compared(case: Case, rounds: list[Round], operations: dict[str, Any]) -> dict[str, Any]:
    """The figures that the group was run for."""
    if case.group == "options":
        return {"options": figures.options(rounds)}
    overhead = figures.overhead(rounds)
    for schedule in overhead.values():
        schedule |= {"a_a_pct": round(figures.quiet(rounds), 2), "operations": operations}
    return {"overhead": overhead}


def machine() -> dict[str, Any]:
    """Where and with what."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "digest_backend": "compiled" if digests.compiled() else "portable",
    }


if __name__ == "__main__":
    sys.exit(main())
