"""Launches one gloo group per layout, collects the raw results, judges them.

Comes in: layouts and form. Goes out: `rows`: name, config, expected, found, saved, hashes, ok, problems.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.matrix import judge, results, rows
from tests.matrix.launch import launch


def run(
    layouts: list[str],
    form: str,
    timeout: float,
    raw: Path,
    *,
    resume: bool = False,
    only_judge: bool = False,
) -> dict[str, Any]:
    """Run and judge; the document that goes into the file.

    `raw` gets a folder per configuration as it ends. With `resume` those that are there already are judged
    again and not run; a rank that dies leaves the others' configurations under "not_run". With `only_judge`
    nothing is run at all.
    """
    table = rows.load()
    document: dict[str, Any] = {"rows": [], "not_run": [], "seconds": {}}
    for layout in layouts:
        ranks = table["layouts"][layout]["ranks"]
        configs = rows.configs(table, layout, form)
        done = [c.label for c in configs if resume and results.read(raw, c.label, ranks) is not None]
        because = "no raw results" if only_judge else ""
        if len(done) < len(configs) and not only_judge:
            try:
                launch("tests.matrix.worker", ranks, raw, layout, form, *done, timeout=timeout)
            except RuntimeError as e:
                because = str(e)
        for config in configs:
            found = results.read(raw, config.label, ranks)
            if found is None:
                document["not_run"].append({"key": config.label, "because": because})
            else:
                document["seconds"][config.label] = found[0]["seconds"]
                _judge(document, table, config, form, found)
    document["ok"] = bool(document["rows"]) and all(row["ok"] for row in document["rows"])
    return document


def _judge(
    document: dict[str, Any],
    table: dict[str, Any],
    config: rows.Config,
    form: str,
    found: list[dict[str, Any]],
) -> None:
    for case in rows.cases(table, config, form):
        lacks = rows.lacking(case, table, found[0]["features"])
        if lacks:
            document["not_run"].append({"key": case.key, "because": f"the agent has no {lacks}"})
            continue
        if any(case.key not in r["results"] for r in found):
            document["not_run"].append({"key": case.key, "because": "the raw results are of another table"})
            continue
        document["rows"].append(_row(case, table, [r["results"][case.key] for r in found]))


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
        lines.append(f"not run: {len(document['not_run'])} ({'; '.join(reasons)})")
    return "\n".join(lines)


def markdown(document: dict[str, Any]) -> str:
    """One line per configuration, for docs/detection.md."""
    lines = ["| configuration | rows met | twins missed when their check was off |", "|---|---|---|"]
    for label in dict.fromkeys(row["config"] for row in document["rows"]):
        of = [r for r in document["rows"] if r["config"] == label]
        counts = []
        for part in ([r for r in of if not r["switched_off"]], [r for r in of if r["switched_off"]]):
            counts.append(f"{sum(r['ok'] for r in part)} of {len(part)}")
        lines.append(f"| {label} | {counts[0]} | {counts[1]} |")
    whole = {entry["key"] for entry in document["not_run"] if "|" not in entry["key"]}
    if whole:
        lines.append(f"| the other {len(whole)} | not run yet with this version | |")
    return "\n".join(lines) + "\n"
