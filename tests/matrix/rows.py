"""Reads `tests/scenarios.json` and lists what one launch runs: every row, in every configuration, seeing and
blinded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios.json"
ROTATING_START = {21: 19, 30: 29}  # one audit earlier, so that the audit that counts is not the first


@dataclass(frozen=True, slots=True)
class Config:
    """One column of the matrix."""

    layout: str
    dtype: str
    mode: str
    partner: str

    @property
    def label(self) -> str:
        """As it stands in the table."""
        return f"{self.layout} {self.dtype} {self.mode} {self.partner}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a row in a configuration, with its check on or off."""

    row: dict[str, Any]
    config: Config
    blinded: bool

    @property
    def key(self) -> str:
        """Unique, also in files."""
        return f"{self.row['name']}|{self.config.label}|{'off' if self.blinded else 'on'}"

    @property
    def start(self) -> int:
        """The snapshot that the run begins from."""
        start: int = self.row["start"]
        rotates = self.config.partner == "rotate" and "pairs" in self.row["expect"]
        return ROTATING_START.get(start, start) if rotates else start


def load() -> dict[str, Any]:
    """The scenario file."""
    table: dict[str, Any] = json.loads(SCENARIOS.read_text())
    return table


def configs(table: dict[str, Any], layout: str, form: str) -> list[Config]:
    """The configurations of a layout.

    Form "full" has all, "short" two that differ in everything (one of few rows), and another text those whose
    label contains it, such as "bf16 immediate".
    """
    if form == "short":
        return [Config(layout, "bf16", "immediate", "fixed"), Config(layout, "fp32", "deferred", "rotate")]
    every = [
        Config(layout, dtype, mode, partner)
        for dtype in table["dtypes"]
        for mode in table["modes"]
        for partner in table["partners"]
    ]
    return [config for config in every if form == "full" or form in config.label]


def cases(table: dict[str, Any], config: Config, form: str) -> Iterator[Case]:
    """Everything that is run in one configuration."""
    short, deferred = form == "short", config.mode == "deferred"
    for row in table["rows"]:
        if short and (not row.get("short") or (deferred and row["short"] != "both")):
            continue
        yield Case(row, config, blinded=False)
        if row["off"] and not (short and deferred):
            yield Case(row, config, blinded=True)


def lacking(case: Case, table: dict[str, Any], features: dict[str, bool]) -> str | None:
    """What the agent cannot do yet that this case needs; None: it can run."""
    schedule = table["schedules"][case.row["schedule"]]
    if case.config.mode == "deferred" and not features["deferred"]:
        return "deferred mode"
    if not schedule.get("deterministic", True) and not features["forward-only"]:
        return "forward-only audits"
    return None
