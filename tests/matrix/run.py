"""Launches one gloo group per layout, collects the raw results, judges them, writes `matrix.json`.

Comes in: layouts and form. Goes out: `rows`: name, config, expected, found, saved, hashes, ok, problems.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.matrix import judge, rows
from tests.matrix.launch import launch


def run(layouts: list[str], form: str, timeout: float) -> dict[str, Any]:
    """Run and judge; the document that goes into the file."""
    table = rows.load()
    document: dict[str, Any] = {"rows": [], "not_run": [], "seconds": {}}
    for layout in layouts:
        with tempfile.TemporaryDirectory() as folder:
            launch(
                "tests.matrix.worker",
                table["layouts"][layout]["ranks"],
                Path(folder),
                layout,
                form,
                timeout=timeout,
            )
            by_rank = [
                json.loads((Path(folder) / f"{layout}-{rank}.json").read_text())
                for rank in range(table["layouts"][layout]["ranks"])
            ]
        document["seconds"][layout] = round(by_rank[0]["seconds"], 1)
        for case in rows.cases(table, layout, form):
            lacks = rows.lacking(case, table, by_rank[0]["features"])
            if lacks:
                document["not_run"].append({"key": case.key, "because": f"the agent has no {lacks}"})
                continue
            document["rows"].append(_row(case, table, [r["results"][case.key] for r in by_rank]))
    document["ok"] = all(row["ok"] for row in document["rows"])
    return document


def _row(case: rows.Case, table: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    wrong = judge.verdict(case, table, found)
    return {
        "name": case.row["name"],
        "config": case.config.label,
        "switched_off": case.row["off"] if case.blinded else [],
        "expected": "missed" if case.blinded else case.row["expect"],
        "found": {
            "alarms": [r["alarm"] and json.loads(r["alarm"]) for r in found],
            "errors": [r["error"] for r in found],
            "applied": [r["applied"] for r in found],
            "strikes": [r["strikes"] for r in found],
        },
        "saved": found[0]["saved"],
        "before": [r["before"] for r in found],
        "after": [r["after"] for r in found],
        "ok": not wrong,
        "problems": wrong,
    }


def table_of(document: dict[str, Any]) -> str:
    """One line per row: how many configurations met it, and how many missed it when blinded."""
    lines = [f"{'row':<42} {'met':>9} {'missed when off':>16}"]
    names = list(dict.fromkeys(row["name"] for row in document["rows"]))
    for name in names:
        of = [r for r in document["rows"] if r["name"] == name]
        seeing, blind = [r for r in of if not r["switched_off"]], [r for r in of if r["switched_off"]]
        met = f"{sum(r['ok'] for r in seeing)}/{len(seeing)}"
        missed = f"{sum(r['ok'] for r in blind)}/{len(blind)}" if blind else "-"
        lines.append(f"{name:<42} {met:>9} {missed:>16}")
    for row in document["rows"]:
        if not row["ok"]:
            off = f" without {', '.join(row['switched_off'])}" if row["switched_off"] else ""
            lines.append(f"FAILED {row['name']} [{row['config']}]{off}: {'; '.join(row['problems'])}")
    if document["not_run"]:
        reasons = sorted({entry["because"] for entry in document["not_run"]})
        lines.append(f"not run: {len(document['not_run'])} cases ({'; '.join(reasons)})")
    return "\n".join(lines)
