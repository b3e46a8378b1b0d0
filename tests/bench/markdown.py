"""The tables of `docs/performance.md` from the figures of one run, and their place there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->"


def tables(found: dict[str, Any]) -> str:
    """Markdown."""
    m = found["machine"]
    lines = [
        f"Measured on {m['date']}: {m['cpu']}, {m['cores']} cores ({m['capability']}), Python {m['python']}, "
        f"torch {m['torch']}, gloo; {found['parameters'] / 1e6:.1f}M parameters, fp32; digest backend "
        f"{m['digest_backend']}; load before the run {m['load_before']:.1f}.",
        "",
    ]
    if found["void"]:
        lines += ["**Columns marked void prove nothing: their A/A row left 1 %.**", ""]
    lines += ["| schedule | " + " | ".join(f"{key}: ours / published" for key in found["cases"]) + " |"]
    lines += ["|---" * (1 + len(found["cases"])) + "|"]
    for name in found["overhead"]:
        cells = [case["overhead"][name] for case in found["cases"].values()]
        row = " | ".join(f"{_pct(c['ours_pct'])} / {_pct(c['published_pct'])}" for c in cells)
        lines.append(f"| {name} | {row} |")
    lines += [_quiet(found["cases"])]
    lines += [
        f"| plain step | {' | '.join(str(c['plain_step_s']) + ' s' for c in found['cases'].values())} |",
        "",
    ]
    lines += _options(found["options"]) + _operations(found)
    return "\n".join(lines + _digest(found) + _rest(found)) + "\n"


def write(text: str) -> None:
    """Between the marks of the document."""
    before, rest = DOCUMENT.read_text().split(BEGIN, 1)
    DOCUMENT.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def _options(cases: dict[str, Any]) -> list[str]:
    """What is off by default, each beside ours without it."""
    names = next(iter(cases.values()))["options"]
    kinds = ("healthy_pct", "healthy_over_ours_pct", "audit_over_ours_pct")
    lines = [
        "| option | " + " | ".join(f"{key}: over plain / over ours / audit step" for key in cases) + " |",
        "|---" * (1 + len(cases)) + "|",
    ]
    for name in names:
        cells = [" / ".join(_pct(c["options"][name][kind]) for kind in kinds) for c in cases.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, _quiet(cases), ""]


def _quiet(cases: dict[str, Any]) -> str:
    """The A/A row: each process group is a run of its own, and void alone."""
    cells = [
        f"{_pct(c['a_a_pct'])} ({c['rounds']} rounds){', void' if c['void'] else ''}" for c in cases.values()
    ]
    return f"| A/A: plain against plain | {' | '.join(cells)} |"


def _operations(found: dict[str, Any]) -> list[str]:
    lines = [
        "| step of | kind | host syncs | collectives | bytes sent | bytes read by norms |",
        "|---|---|---|---|---|---|",
    ]
    options = next(iter(found["options"].values()))
    for subject, kinds in {**found["operations"], **options["operations"]}.items():
        for kind, c in kinds.items():
            row = f"{c['host_syncs']} | {c['collectives']} | {c['sent_bytes']:,} | {c['norm_bytes']:,}"
            lines.append(f"| {subject} | {kind} | {row} |")
    return [*lines, ""]


def _digest(found: dict[str, Any]) -> list[str]:
    columns = ["compiled", "portable", "memcpy", "hash_tensor", "published"]
    lines = ["| digest of | one read | " + " | ".join(f"{c} / read" for c in columns) + " |"]
    lines += ["|---" * (2 + len(columns)) + "|"]
    for row in found["digest"]:
        cells = " | ".join(f"{row[f'{c}_to_read']}x" if f"{c}_to_read" in row else "none" for c in columns)
        lines.append(f"| {row['megabytes']} MB {row['dtype']} | {row['one_read_gb_per_s']} GB/s | {cells} |")
    return [*lines, ""]


def _rest(found: dict[str, Any]) -> list[str]:
    flat = {**found["scale"], **{k: v for k, v in found["start"].items() if not isinstance(v, dict)}}
    flat |= {f"{k}, s": v for k, v in found["start"]["attach_and_first_steps_s"].items()}
    return ["| scale and start | |", "|---|---|", *[f"| {k} | {v} |" for k, v in flat.items()]]


def _pct(value: float | None) -> str:
    return "none" if value is None else f"{value:+.1f} %"
